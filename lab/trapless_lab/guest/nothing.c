/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * nothing: what the processes of spawn execute.
 *
 * Its start and end are the C library's and the kernel's alone.
 */
int main(void)
{
	return 0;
}
