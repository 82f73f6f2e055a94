/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * nothing: the program that the processes of spawn execute.
 *
 * It does nothing besides the C library's and the kernel's start and exit code.
 */
int main(void)
{
	return 0;
}
