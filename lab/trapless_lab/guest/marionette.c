/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * marionette OPTIONS: drive a Firefox that was started with --marionette.
 *
 * Tabs are opened one by one, each with a page of its own, and closed one by one; so
 * often; then Firefox may be told to quit. Its protocol: a message is its length in
 * decimal, a colon, and JSON: [0, number, command, parameters] from here,
 * [1, number, error, result] back. An error, or an answer to another command, ends
 * this program with a message.
 *
 * Output, a record a line, each when it has happened:
 *
 *   marionette ready|opened|closed|quit at=NANOSECONDS, on the clock of measure.h
 */
#include <arpa/inet.h>
#include <ctype.h>
#include <err.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "measure.h"

#define PORT 2828
#define READY_S 300
#define TABS_MAX 64
#define HANDLE_MAX 64

static const char usage_text[] =
	"usage: marionette [options]\n"
	"\n"
	"options:\n"
	"  -n, --count N    open all tabs and close them so many times (default 1)\n"
	"  -t, --tabs N     tabs beside the first (default 5)\n"
	"  -u, --url URL    page of each tab\n"
	"  -p, --pause MS   sleep so long after each tab is opened or closed\n"
	"  -k, --keep       leave the tabs of the last time open\n"
	"  -q, --quit       quit Firefox at the end\n";

static int server;
static unsigned int commands;

static void said(const char *what)
{
	printf("marionette %s at=%llu\n", what, (unsigned long long)now_ns());
	fflush(stdout);
}

static void read_all(char *to, size_t bytes)
{
	while (bytes) {
		ssize_t got = read(server, to, bytes);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			errx(1, "Firefox closed the connection: %s", got ? strerror(errno) : "no more");
		to += got;
		bytes -= (size_t)got;
	}
}

/* Returns the next message, which is to be freed. */
static char *receive(void)
{
	size_t length = 0;
	char byte, *text;

	for (;;) {
		read_all(&byte, 1);
		if (byte == ':')
			break;
		if (!isdigit((unsigned char)byte) || length > 1000000)
			errx(1, "not a message of Marionette's: %#x", (unsigned char)byte);
		length = length * 10 + (size_t)(byte - '0');
	}
	text = malloc(length + 1);
	if (!text)
		err(1, "a message of %zu bytes", length);
	read_all(text, length);
	text[length] = 0;
	return text;
}

/* Returns the result of a command, as JSON, which is to be freed. */
static char *command(const char *name, const char *parameters, ...)
{
	char body[4096], given[3072], message[4200], expected[32], *answer;
	va_list arguments;
	int length;

	va_start(arguments, parameters);
	length = vsnprintf(given, sizeof(given), parameters, arguments);
	va_end(arguments);
	if (length < 0 || (size_t)length >= sizeof(given))
		errx(1, "%s: its parameters are too long", name);
	commands++;
	length = snprintf(body, sizeof(body), "[0,%u,\"%s\",%s]", commands, name, given);
	length = snprintf(message, sizeof(message), "%d:%s", length, body);
	if (write(server, message, (size_t)length) != length)
		err(1, "%s", name);
	answer = receive();
	snprintf(expected, sizeof(expected), "[1,%u,null,", commands);
	if (strncmp(answer, expected, strlen(expected)))
		errx(1, "%s failed: %.2000s", name, answer);
	return answer;
}

static void do_command(const char *name, const char *parameters)
{
	free(command(name, "%s", parameters));
}

/* Takes the string behind a key out of JSON that has it once and without escapes. */
static void string_of(const char *json, const char *key, char *to, size_t bytes)
{
	char quoted[32];
	const char *at, *end;

	snprintf(quoted, sizeof(quoted), "\"%s\":\"", key);
	at = strstr(json, quoted);
	end = at ? strchr(at + strlen(quoted), '"') : NULL;
	if (!end || (size_t)(end - at) - strlen(quoted) >= bytes)
		errx(1, "no \"%s\" in %.2000s", key, json);
	at += strlen(quoted);
	memcpy(to, at, (size_t)(end - at));
	to[end - at] = 0;
}

static void connect_to_firefox(void)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_port = htons(PORT),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};

	for (int tries = 0;; tries++) {
		server = socket(AF_INET, SOCK_STREAM, 0);
		if (server < 0)
			err(1, "socket");
		if (!connect(server, (struct sockaddr *)&address, sizeof(address)))
			break;
		if (tries == READY_S * 10)
			err(1, "Firefox does not listen after %d s", READY_S);
		close(server);
		usleep(100000);
	}
	free(receive());
}

static void go_to(const char *handle)
{
	free(command("WebDriver:SwitchToWindow", "{\"handle\":\"%s\",\"focus\":true}", handle));
}

static void open_and_close(unsigned long tabs, const char *url, unsigned long pause_ms, int keep)
{
	char handles[TABS_MAX][HANDLE_MAX], first[HANDLE_MAX];
	char *answer = command("WebDriver:GetWindowHandle", "{}");

	string_of(answer, "value", first, sizeof(first));
	free(answer);
	for (unsigned long i = 0; i < tabs; i++) {
		answer = command("WebDriver:NewWindow", "{\"type\":\"tab\",\"focus\":true}");
		string_of(answer, "handle", handles[i], HANDLE_MAX);
		free(answer);
		go_to(handles[i]);
		free(command("WebDriver:Navigate", "{\"url\":\"%s?%lu\"}", url, i));
		usleep((useconds_t)pause_ms * 1000);
	}
	said("opened");
	for (unsigned long i = 0; i < tabs && !keep; i++) {
		go_to(handles[i]);
		do_command("WebDriver:CloseWindow", "{}");
		usleep((useconds_t)pause_ms * 1000);
	}
	go_to(first);
	if (!keep)
		said("closed");
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "count", required_argument, NULL, 'n' }, { "tabs", required_argument, NULL, 't' },
		{ "url", required_argument, NULL, 'u' },   { "pause", required_argument, NULL, 'p' },
		{ "keep", no_argument, NULL, 'k' },	   { "quit", no_argument, NULL, 'q' },
		{ NULL, 0, NULL, 0 },
	};
	unsigned long count = 1, tabs = 5, pause_ms = 0;
	const char *url = "about:blank";
	int option, quit = 0, keep = 0;

	while ((option = getopt_long(argc, argv, "n:t:u:p:kq", options, NULL)) != -1) {
		switch (option) {
		case 'n':
			count = number(optarg, "--count");
			break;
		case 't':
			tabs = number(optarg, "--tabs");
			break;
		case 'u':
			url = optarg;
			break;
		case 'p':
			pause_ms = number(optarg, "--pause");
			break;
		case 'k':
			keep = 1;
			break;
		case 'q':
			quit = 1;
			break;
		default:
			fputs(usage_text, stderr);
			return 2;
		}
	}
	if (optind != argc || tabs > TABS_MAX) {
		fputs(usage_text, stderr);
		return 2;
	}
	connect_to_firefox();
	do_command("WebDriver:NewSession", "{}");
	said("ready");
	for (unsigned long i = 0; i < count; i++)
		open_and_close(tabs, url, pause_ms, keep && i + 1 == count);
	if (quit) {
		do_command("Marionette:Quit", "{\"flags\":[\"eForceQuit\"]}");
		said("quit");
	} else {
		do_command("WebDriver:DeleteSession", "{}");
	}
	return 0;
}
