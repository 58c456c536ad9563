/* NumPy files, format 1.0, C order. */
#ifndef EPDCTL_NPY_H
#define EPDCTL_NPY_H

#include <stdint.h>

#include "proto/errors.h"

/* descr: "<i4", "<f4", "<u2"; shape[n_dims], n_dims 1..3, any of them 0. data: the elements. */
enum epd_status npy_write(const char *path, const char *descr, const uint64_t *shape,
                          unsigned n_dims, const void *data, struct epd_error *err);

#endif
