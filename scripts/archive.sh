# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Packages of Debian's archive that are unpacked and never installed, of another release or
# processor than the host's, for scripts that source this. They come from the mirrors that
# apt uses on this host, by lists of their own: apt's settings and the installed packages
# stay as they are.
#
# Invariant: apt checks each package against the archive's signature, and the folder is
# replaced as a whole or stays as it is.
#
#   archive_open FOLDER ARCHITECTURE RELEASE...   begin; $fresh is the folder to be
#   archive_stands_for PACKAGE [PATTERN]          what a package without a version in its name depends on
#   archive_download PACKAGE...                   into $fresh/debs
#   archive_source PACKAGE[=VERSION]...           upstream's source of the first that a mirror has, in
#                                                 $fresh/source; fails, with apt's words, if it is none
#   archive_close                                 $fresh becomes FOLDER, with a list of versions

die() {
	echo "${0##*/}: $*" >&2
	exit 1
}

archive_open() {
	local folder=$1 architecture=$2 keys=/usr/share/keyrings/debian-archive-keyring.gpg
	local mirror security sources release
	shift 2
	. /etc/os-release
	[ -e "$keys" ] || die "$keys is missing; install the Debian package debian-archive-keyring"
	# Where apt has this release from, security fixes as well.
	sources=$(apt-get indextargets --format "deb [signed-by=$keys] \$(REPO_URI) \$(RELEASE) main" \
		'Created-By: Packages' 'Origin: Debian' 'Component: main' | sort -u)
	mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' \
		"Codename: ${VERSION_CODENAME:-}" | head -n 1)
	[ -n "$mirror" ] || die "apt knows no mirror of Debian on this host"
	security=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian-Security' \
		"Codename: ${VERSION_CODENAME:-}-security" | head -n 1)

	archive_folder=$folder fresh=$folder.$$
	trap 'rm -rf "$fresh"' EXIT
	rm -rf "$fresh"
	mkdir -p "$fresh"/apt/{lists,cache/archives}/partial "$fresh/debs"
	{
		printf '%s\n' "$sources"
		for release; do
			[ "$release" != "${VERSION_CODENAME:-}" ] || continue
			echo "deb [signed-by=$keys] $mirror $release main"
			# Who runs that release has its security fixes; backports and sid have none of their own.
			case $release in *-* | sid | experimental) continue ;; esac
			[ -z "$security" ] || echo "deb [signed-by=$keys] $security $release-security main"
		done
	} >"$fresh/apt/sources.list"
	apt=(-q -o APT::Architecture="$architecture" -o APT::Architectures::="$architecture"
		-o APT::Sandbox::User="$(id -un)" -o Acquire::Languages=none
		-o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false
		-o Dir::State::lists="$fresh/apt/lists" -o Dir::State::status=/dev/null -o Dir::Cache="$fresh/apt/cache"
		-o Dir::Etc::sourcelist="$fresh/apt/sources.list" -o Dir::Etc::sourceparts=-)
	apt-get "${apt[@]}" update >"$fresh/log" 2>&1 || { cat "$fresh/log" >&2; die "no list of packages"; }
}

archive_stands_for() {
	apt-cache "${apt[@]}" show "$1" | sed -nE 's/^Depends: (.*, )?([^ ]+) .*/\2/p' | grep -x "${2:-.*}" | head -n 1
}

archive_download() {
	(cd "$fresh/debs" && apt-get "${apt[@]}" download "$@" >>"$fresh/log" 2>&1)
}

archive_source() {
	local package
	if ! grep -q '^deb-src' "$fresh/apt/sources.list"; then
		sed -i 's/^deb \(.*\)/&\ndeb-src \1/' "$fresh/apt/sources.list"
		apt-get "${apt[@]}" update >"$fresh/log" 2>&1 || { cat "$fresh/log" >&2; return 1; }
	fi
	# A list of security fixes may name a source that only the release's own mirror has.
	for package in "$@" "${@/%//$VERSION_CODENAME}"; do
		(cd "$fresh/debs" && apt-get "${apt[@]}" source --tar-only --download-only "$package" >>"$fresh/log" 2>&1) ||
			continue
		mkdir "$fresh/source" &&
			tar -x -f "$fresh"/debs/*.orig.tar.* -C "$fresh/source" --strip-components=1
		return
	done
	cat "$fresh/log" >&2
	return 1
}

archive_close() {
	local file name
	for file in "$fresh"/debs/*; do
		name=${file##*/}
		case $name in
		*.deb) dpkg-deb --show --showformat '${Package} ${Version}\n' "$file" ;;
		*.orig.tar.*) name=${name%.orig.tar.*} && echo "${name%%_*} ${name#*_}" ;;
		esac
	done >"$fresh/versions"
	rm -rf "$fresh/apt" "$fresh/debs" "$fresh/log" "$archive_folder"
	mv "$fresh" "$archive_folder"
}
