/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * pinned: pages that a device writes, across forks.
 *
 * The pages are registered with io_uring, which pins them for as long as it
 * lives, as an RDMA device would. Reads through the ring go to the pinned pages,
 * so these must stay the parent's however often it forks and whichever process
 * writes first; and no child may see what is read after its fork.
 */
#define _GNU_SOURCE
#include <linux/io_uring.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "oracle.h"

#define PAGES 72UL /* enough that fork_entries serves the area */
#define ROUNDS 20

struct ring {
	int fd;
	unsigned int *tail, *array, *head_done, *mask;
	struct io_uring_sqe *entries;
	struct io_uring_cqe *done;
};

static void *map_ring(int fd, size_t size, off_t what)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, what);

	if (memory == MAP_FAILED)
		err(1, "mmap of the ring");
	return memory;
}

static void open_ring(struct ring *ring)
{
	struct io_uring_params p = { 0 };
	char *submit, *complete;

	ring->fd = syscall(SYS_io_uring_setup, 4, &p);
	if (ring->fd < 0)
		err(1, "io_uring_setup");
	submit = map_ring(ring->fd, p.sq_off.array + p.sq_entries * 4, IORING_OFF_SQ_RING);
	complete = map_ring(ring->fd, p.cq_off.cqes + p.cq_entries * sizeof(*ring->done),
			    IORING_OFF_CQ_RING);
	ring->entries = map_ring(ring->fd, p.sq_entries * sizeof(*ring->entries), IORING_OFF_SQES);
	ring->tail = (unsigned int *)(submit + p.sq_off.tail);
	ring->array = (unsigned int *)(submit + p.sq_off.array);
	ring->head_done = (unsigned int *)(complete + p.cq_off.head);
	ring->mask = (unsigned int *)(complete + p.cq_off.ring_mask);
	ring->done = (struct io_uring_cqe *)(complete + p.cq_off.cqes);
}

/* Read the page at @index of @file into @to, through the pin. */
static void read_fixed(struct ring *ring, int file, char *to, unsigned long index)
{
	struct io_uring_cqe *done;

	ring->entries[0] = (struct io_uring_sqe){
		.opcode = IORING_OP_READ_FIXED, .fd = file, .off = index * PAGE,
		.addr = (uintptr_t)to, .len = PAGE,
	};
	ring->array[*ring->tail & 3] = 0;
	__atomic_store_n(ring->tail, *ring->tail + 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, ring->fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
		err(1, "io_uring_enter");
	done = &ring->done[*ring->head_done & *ring->mask];
	if (done->res != (int)PAGE)
		errx(1, "io_uring: %d", done->res);
	__atomic_store_n(ring->head_done, *ring->head_done + 1, __ATOMIC_RELEASE);
}

/* The same bytes as at the fork, whatever the parent does meanwhile. */
static void child(const char *memory, const uint64_t *tags, int door)
{
	char byte;

	for (unsigned long i = 0; i < PAGES; i++)
		check_page(memory + i * PAGE, tags[i], "child", i);
	if (read(door, &byte, 1))
		errx(1, "the door");
	for (unsigned long i = 0; i < PAGES; i++)
		check_page(memory + i * PAGE, tags[i], "child, later", i);
	memset((char *)memory, 0xff, PAGES * PAGE);
	_exit(0);
}

int main(void)
{
	char path[] = "/tmp/pinned-XXXXXX";
	char *memory = map_private(PAGES);
	struct iovec pinned = { memory, PAGES * PAGE };
	uint64_t tags[PAGES], state = 5;
	char content[PAGE];
	struct ring ring;
	int file = mkstemp(path);

	if (file < 0)
		err(1, "%s", path);
	for (unsigned long i = 0; i < PAGES; i++) {
		fill_page(memory + i * PAGE, i + 1);
		tags[i] = i + 1;
		fill_page(content, 1000 + i);
		if (write(file, content, PAGE) != (ssize_t)PAGE)
			err(1, "write");
	}
	open_ring(&ring);
	if (syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &pinned, 1))
		err(1, "IORING_REGISTER_BUFFERS");
	for (unsigned int round = 0; round < ROUNDS; round++) {
		int door[2];
		pid_t pid;

		if (pipe(door))
			err(1, "pipe");
		pid = start_child();
		if (!pid) {
			close(door[1]);
			child(memory, tags, door[0]);
		}
		close(door[0]);
		for (unsigned long i = 0; i < PAGES; i++) {
			uint64_t what = next_random(&state);

			if (what % 3 == 0) {
				tags[i] = what;
				fill_page(memory + i * PAGE, what);
			} else if (what % 3 == 1) {
				tags[i] = 1000 + what / 3 % PAGES;
				read_fixed(&ring, file, memory + i * PAGE, tags[i] - 1000);
			}
		}
		for (unsigned long i = 0; i < PAGES; i++)
			check_page(memory + i * PAGE, tags[i], "parent", i);
		close(door[1]);
		wait_child(pid);
		for (unsigned long i = 0; i < PAGES; i++)
			check_page(memory + i * PAGE, tags[i], "parent, later", i);
	}
	unlink(path);
	return 0;
}
