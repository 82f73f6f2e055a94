/* SPDX-License-Identifier: GPL-2.0-only */
/* How a module opens a disk, where the series of the kernel differ. */
#ifndef TRAPLESS_SERIES_DISK_H
#define TRAPLESS_SERIES_DISK_H

#include <linux/blkdev.h>

#include "series.h"

#if SERIES_IS(6, 1)

#define series_disk block_device

/* Return: a disk that series_disk_close() closes, or an error. */
static inline struct series_disk *series_disk_open(const char *path)
{
	return blkdev_get_by_path(path, FMODE_READ, NULL);
}

static inline struct block_device *series_disk_device(struct series_disk *disk)
{
	return disk;
}

static inline void series_disk_close(struct series_disk *disk)
{
	blkdev_put(disk, FMODE_READ);
}

#elif SERIES_IS(6, 12)

#define series_disk file

static inline struct series_disk *series_disk_open(const char *path)
{
	return bdev_file_open_by_path(path, BLK_OPEN_READ, NULL, NULL);
}

static inline struct block_device *series_disk_device(struct series_disk *disk)
{
	return file_bdev(disk);
}

static inline void series_disk_close(struct series_disk *disk)
{
	bdev_fput(disk);
}

#endif

#endif /* TRAPLESS_SERIES_DISK_H */
