/* Buffers and descriptors of a seat. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/rng.h"
#include "tests/support/seat.h"
#include "tests/support/seat_internal.h"

/* Row to row, in bytes: dense, or with an odd number of alignment units behind each row. */
static size_t stride(const struct seat *s, size_t row, size_t unit, unsigned units)
{
    return s->c.flags & SEAT_STRIDED ? row + unit * units : row;
}

static void plan_in(struct seat *s)
{
    const struct epd_shape *p = &s->c.w.shape;
    const size_t rows = (size_t)SEAT_TURNS * p->max_tokens, row = epd_row_bytes(p);
    const size_t id = epd_ids_bytes(s->c.w.ids_type);
    s->x_stride = stride(s, row, 16, 3);
    s->ids_stride = stride(s, p->topk * id, id, 1);
    s->weights_stride = stride(s, p->topk * 4u, 4, 3);
    s->result_stride = stride(s, row, 16, 1);
    s->x = image_add(&s->in, "x", rows * s->x_stride, 16);
    s->ids = image_add(&s->in, "ids", rows * s->ids_stride, id);
    s->weights = image_add(&s->in, "weights", rows * s->weights_stride, 4);
    s->result = image_add(&s->in, "out", rows * s->result_stride, 16);
    s->control = image_add(&s->in, "control", SEAT_TURNS * 2u * 16u, 16);
}

static void plan_out(struct seat *s)
{
    const struct epd_shape *p = &s->c.w.shape;
    const size_t sets = s->c.sets, rows = sets * epd_recv_rows(p), row = epd_row_bytes(p);
    s->recv_stride = stride(s, row, 16, 1);
    s->rows_stride = s->c.flags & SEAT_IN_PLACE ? s->recv_stride : stride(s, row, 16, 5);
    s->recv = image_add(&s->out, "recv", rows * s->recv_stride, 16);
    s->counts = image_add(&s->out, "counts", sets * epd_counts_len(p) * 4u, 16);
    s->src = image_add(&s->out, "src", rows * 4u, 16);
    if (p->layout == EPD_LAYOUT_EXPERT_MAJOR) {
        s->ranges = image_add(&s->out, "ranges", sets * p->experts * 8u, 16);
    } else {
        s->recv_ids = image_add(&s->out, "recv_ids", rows * p->topk * 4u, 16);
        s->recv_weights = image_add(&s->out, "recv_weights", rows * p->topk * 4u, 16);
    }
    s->rows = s->recv;
    if (!(s->c.flags & SEAT_IN_PLACE))
        s->rows = image_add(&s->out, "rows", rows * s->rows_stride, 16);
}

static enum epd_status import_in(struct seat *s, uint32_t device, struct epd_error *err)
{
    const size_t bytes = image_bytes(&s->in);
    s->in_fd = memfd_create("test-import", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (s->in_fd < 0 || posix_fallocate(s->in_fd, 0, (off_t)bytes) != 0 ||
        fcntl(s->in_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        *err = (struct epd_error){.status = EPD_ESYS, .message = "memfd for an import"};
        return EPD_ESYS;
    }
    return epd_buffer_import(s->epd, device, s->in_fd, bytes, &s->in_buffer, err);
}

static struct epd_array in_array(const struct seat *s, size_t offset, size_t bytes, size_t step)
{
    return (struct epd_array){s->in_buffer, offset, bytes, s->c.flags & SEAT_STRIDED ? step : 0};
}

static struct epd_array out_array(const struct seat *s, size_t offset, size_t bytes, size_t step)
{
    return (struct epd_array){s->out_buffer, offset, bytes, s->c.flags & SEAT_STRIDED ? step : 0};
}

static enum epd_status bind_dispatch(struct seat *s, struct epd_error *err)
{
    const struct epd_shape *p = &s->c.w.shape;
    const size_t in_rows = (size_t)SEAT_TURNS * p->max_tokens;
    const size_t rows = s->c.sets * epd_recv_rows(p);
    struct epd_dispatch_config d = EPD_DISPATCH_CONFIG_INIT;
    d.ids_type = s->c.w.ids_type;
    d.sets = s->c.sets;
    d.x = in_array(s, s->x, in_rows * s->x_stride, s->x_stride);
    d.ids = in_array(s, s->ids, in_rows * s->ids_stride, s->ids_stride);
    d.recv = out_array(s, s->recv, rows * s->recv_stride, s->recv_stride);
    d.counts = out_array(s, s->counts, s->c.sets * epd_counts_len(p) * 4u, 0);
    if (!(s->c.flags & SEAT_BARE))
        d.src = out_array(s, s->src, rows * 4u, 0);
    if (p->layout == EPD_LAYOUT_EXPERT_MAJOR && !(s->c.flags & SEAT_BARE))
        d.ranges = out_array(s, s->ranges, (size_t)s->c.sets * p->experts * 8u, 0);
    if (p->layout == EPD_LAYOUT_RANK_MAJOR) {
        d.weights = in_array(s, s->weights, in_rows * s->weights_stride, s->weights_stride);
        d.recv_ids = out_array(s, s->recv_ids, rows * p->topk * 4u, 0);
        d.recv_weights = out_array(s, s->recv_weights, rows * p->topk * 4u, 0);
    }
    if (s->c.flags & (SEAT_B_INDIRECT | SEAT_NOTIFY))
        d.control = in_array(s, s->control, SEAT_TURNS * 2u * 16u, 0);
    return epd_dispatch_bind(s->lease, &d, &s->dispatch, err);
}

static enum epd_status bind_combine(struct seat *s, struct epd_error *err)
{
    const struct epd_shape *p = &s->c.w.shape;
    const size_t in_rows = (size_t)SEAT_TURNS * p->max_tokens;
    const size_t rows = s->c.sets * epd_recv_rows(p);
    struct epd_combine_config c = EPD_COMBINE_CONFIG_INIT;
    c.sets = s->c.sets;
    c.rows = out_array(s, s->rows, rows * s->rows_stride, s->rows_stride);
    if (p->layout == EPD_LAYOUT_EXPERT_MAJOR)
        c.weights = in_array(s, s->weights, in_rows * s->weights_stride, s->weights_stride);
    c.out = in_array(s, s->result, in_rows * s->result_stride, s->result_stride);
    if (s->c.flags & (SEAT_B_INDIRECT | SEAT_NOTIFY))
        c.control = in_array(s, s->control, SEAT_TURNS * 2u * 16u, 0);
    return epd_combine_bind(s->lease, &c, &s->combine, err);
}

void seat_memory_plan(struct seat *s)
{
    plan_in(s);
    plan_out(s);
}

enum epd_status seat_memory_open(struct seat *s, struct epd_error *err)
{
    const uint32_t device = epd_lease_device(s->lease);
    const uint64_t seed = rng_hash(s->c.w.seed, s->c.rank, 0x6775617264ull, 0);
    seat_memory_plan(s);
    enum epd_status status =
        s->c.flags & SEAT_IMPORT
            ? import_in(s, device, err)
            : epd_buffer_alloc(s->epd, device, image_bytes(&s->in), &s->in_buffer, err);
    if (status == EPD_OK)
        status = epd_buffer_alloc(s->epd, device, image_bytes(&s->out), &s->out_buffer, err);
    if (status != EPD_OK)
        return status;
    image_init(&s->in, epd_buffer_ptr(s->in_buffer), seed);
    image_init(&s->out, epd_buffer_ptr(s->out_buffer), seed + 1);
    status = bind_dispatch(s, err);
    return status == EPD_OK ? bind_combine(s, err) : status;
}

void seat_memory_close(struct seat *s, bool call)
{
    if (call) {
        (void)epd_op_unbind(s->dispatch, NULL); /* the end of the session frees what stays */
        (void)epd_op_unbind(s->combine, NULL);
        (void)epd_buffer_free(s->in_buffer, NULL);
        (void)epd_buffer_free(s->out_buffer, NULL);
    }
    image_fini(&s->in);
    image_fini(&s->out);
    if (s->in_fd >= 0)
        (void)close(s->in_fd); /* a memfd */
}
