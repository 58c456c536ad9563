#include "client/epdctl/npy.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/epdctl/fail.h"

enum epd_status npy_write(const char *path, const char *descr, const uint64_t *shape,
                          unsigned n_dims, const void *data, struct epd_error *err)
{
    char dims[96] = "", head[256];
    uint64_t count = 1;
    for (unsigned i = 0; i < n_dims; i++) {
        const size_t n = strlen(dims);
        (void)snprintf(dims + n, sizeof(dims) - n, i > 0 ? " %" PRIu64 "," : "%" PRIu64 ",",
                       shape[i]);
        count *= shape[i];
    }
    if (n_dims > 1) /* (2, 3), but (2,) */
        dims[strlen(dims) - 1] = 0;
    int n = snprintf(head, sizeof(head), "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }",
                     descr, dims);
    while ((10 + n + 1) % 64 != 0)
        head[n++] = ' ';
    head[n++] = '\n';
    const unsigned char magic[10] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)(n & 255), (unsigned char)(n >> 8)};
    const uint64_t bytes = count * (uint64_t)(descr[2] - '0');
    FILE *out = fopen(path, "we");
    if (out == NULL)
        return ctl_fail(err, EPD_ESYS, "%s: %s", path, strerror(errno));
    int ok = fwrite(magic, 1, sizeof(magic), out) == sizeof(magic) &&
             fwrite(head, 1, (size_t)n, out) == (size_t)n && fwrite(data, 1, bytes, out) == bytes;
    ok = fclose(out) == 0 && ok;
    return ok ? EPD_OK : ctl_fail(err, EPD_ESYS, "%s: cannot be written", path);
}
