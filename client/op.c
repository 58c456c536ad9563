#include "client/internal.h"

#include <stdlib.h>

#include "client/fail.h"

static const struct epdc_method bind_op = {EPDC_CONTROL_PREFIX "BindOp",
                                           &epd__v1__bind_op_reply__descriptor};
static const struct epdc_method unbind_op = {EPDC_CONTROL_PREFIX "UnbindOp",
                                             &epd__v1__empty__descriptor};

/* What both kinds of bind boil down to. */
struct binding {
    uint32_t kind, ids_type, sets;
    const struct epd_array *array[EPD_ARRAY_ROLES]; /* NULL: absent */
    const char *name[EPD_ARRAY_ROLES];
};

static enum epd_status arrays_valid(const struct epd_lease *lease, const struct binding *b,
                                    struct epd_error *err)
{
    for (unsigned i = 0; i < EPD_ARRAY_ROLES; i++) {
        const struct epd_array *a = b->array[i];
        if (!a || !a->buffer)
            continue;
        uint64_t size = a->buffer->bytes;
        if (a->buffer->epd != lease->epd)
            return epdc_fail(err, EPD_EINVAL, "%s: its buffer belongs to another session",
                             b->name[i]);
        if (a->offset >= size || a->bytes > size - a->offset)
            return epdc_fail(err, EPD_EINVAL,
                             "%s: offset %llu and bytes %llu leave its buffer of %llu bytes",
                             b->name[i], (unsigned long long)a->offset,
                             (unsigned long long)a->bytes, (unsigned long long)size);
    }
    return EPD_OK;
}

/* The call. Lock held. */
static enum epd_status call_bind(struct epd_op *op, const struct binding *b, struct epd_error *err)
{
    struct epd *epd = op->lease->epd;
    Epd__V1__Session session;
    Epd__V1__BindOpRequest req = EPD__V1__BIND_OP_REQUEST__INIT;
    Epd__V1__Array arrays[EPD_ARRAY_ROLES], *refs[EPD_ARRAY_ROLES];
    ProtobufCMessage *reply = NULL;

    for (unsigned i = 0; i < EPD_ARRAY_ROLES; i++) {
        const struct epd_array *a = b->array[i];
        epd__v1__array__init(&arrays[i]);
        refs[i] = &arrays[i];
        if (!a || !a->buffer)
            continue;
        arrays[i].buffer = a->buffer->id;
        arrays[i].offset = a->offset;
        arrays[i].bytes = a->bytes;
        arrays[i].stride = a->stride;
    }
    epdc_session_message(epd, &session);
    req.session = &session;
    req.lease = op->lease->id;
    req.kind = b->kind;
    req.ids_type = b->ids_type;
    req.sets = b->sets;
    req.arrays = refs;
    req.n_arrays = EPD_ARRAY_ROLES;
    enum epd_status status = epdc_session_call(epd, &bind_op, &req.base, &reply, err);
    if (status != EPD_OK)
        return status;
    const Epd__V1__BindOpReply *r = (const Epd__V1__BindOpReply *)(const void *)reply;
    op->desc_index = r->desc_index;
    op->desc_generation = r->desc_generation;
    epdc_reply_free(reply);
    return EPD_OK;
}

/* Lock held. */
static void op_add(struct epd_op *op, const struct binding *b)
{
    for (unsigned i = 0; i < EPD_ARRAY_ROLES; i++) {
        if (!b->array[i] || !b->array[i]->buffer)
            continue;
        op->buffers[i] = b->array[i]->buffer;
        op->buffers[i]->ops++;
    }
    op->next = op->lease->ops;
    op->lease->ops = op;
}

static enum epd_status bind_arrays(struct epd_lease *lease, const struct binding *b,
                                   struct epd_op **out, struct epd_error *err)
{
    struct epd *epd = lease->epd;
    enum epd_status status = epdc_session_usable(epd, err);
    if (status == EPD_OK)
        status = arrays_valid(lease, b, err);
    if (status != EPD_OK)
        return status;
    struct epd_op *op = calloc(1, sizeof(*op));
    if (!op)
        return epdc_fail(err, EPD_ENOMEM, "no memory for an op");
    *op = (struct epd_op){.lease = lease, .kind = b->kind, .sets = b->sets};
    const struct epd_array *control = b->array[EPD_ARRAY_CONTROL];
    op->has_control = control && control->buffer;

    pthread_mutex_lock(&epd->lock);
    status = call_bind(op, b, err);
    if (status == EPD_OK)
        op_add(op, b);
    pthread_mutex_unlock(&epd->lock);
    if (status != EPD_OK) {
        free(op);
        return status;
    }
    *out = op;
    return EPD_OK;
}

static enum epd_status config_valid(const void *lease, const void *out, uint32_t size,
                                    size_t expected, struct epd_error *err)
{
    if (!lease || !out)
        return epdc_fail(err, EPD_EINVAL, "%s is NULL", lease ? "out" : "lease");
    if (size != expected)
        return epdc_fail(err, EPD_EINVAL,
                         "config.size is %u, expected %zu: initialise it with its "
                         "_INIT literal",
                         size, expected);
    return EPD_OK;
}

enum epd_status epd_dispatch_bind(struct epd_lease *lease, const struct epd_dispatch_config *config,
                                  struct epd_op **out, struct epd_error *err)
{
    if (!config)
        return epdc_fail(err, EPD_EINVAL, "config is NULL");
    enum epd_status status = config_valid(lease, out, config->size, sizeof(*config), err);
    if (status != EPD_OK)
        return status;
    const struct binding b = {
        .kind = EPD_OP_DISPATCH,
        .ids_type = config->ids_type,
        .sets = config->sets,
        .array = {[EPD_ARRAY_X] = &config->x,
                  [EPD_ARRAY_IDS] = &config->ids,
                  [EPD_ARRAY_WEIGHTS] = &config->weights,
                  [EPD_ARRAY_RECV] = &config->recv,
                  [EPD_ARRAY_COUNTS] = &config->counts,
                  [EPD_ARRAY_RANGES] = &config->ranges,
                  [EPD_ARRAY_SRC] = &config->src,
                  [EPD_ARRAY_RECV_IDS] = &config->recv_ids,
                  [EPD_ARRAY_RECV_WEIGHTS] = &config->recv_weights,
                  [EPD_ARRAY_CONTROL] = &config->control},
        .name = {"x", "ids", "weights", "recv", "counts", "ranges", "src", "recv_ids",
                 "recv_weights", "control"},
    };
    return bind_arrays(lease, &b, out, err);
}

enum epd_status epd_combine_bind(struct epd_lease *lease, const struct epd_combine_config *config,
                                 struct epd_op **out, struct epd_error *err)
{
    if (!config)
        return epdc_fail(err, EPD_EINVAL, "config is NULL");
    enum epd_status status = config_valid(lease, out, config->size, sizeof(*config), err);
    if (status != EPD_OK)
        return status;
    const struct binding b = {
        .kind = EPD_OP_COMBINE,
        .sets = config->sets,
        .array = {[EPD_ARRAY_ROWS] = &config->rows,
                  [EPD_ARRAY_WEIGHTS] = &config->weights,
                  [EPD_ARRAY_OUT] = &config->out,
                  [EPD_ARRAY_CONTROL] = &config->control},
        .name = {[EPD_ARRAY_ROWS] = "rows",
                 [EPD_ARRAY_WEIGHTS] = "weights",
                 [EPD_ARRAY_OUT] = "out",
                 [EPD_ARRAY_CONTROL] = "control"},
    };
    return bind_arrays(lease, &b, out, err);
}

void epdc_op_destroy(struct epd_op *op, bool forked)
{
    for (unsigned i = 0; !forked && i < EPD_ARRAY_ROLES; i++) {
        if (op->buffers[i])
            op->buffers[i]->ops--;
    }
    free(op);
}

/* Lock held. */
static enum epd_status unbind(struct epd_op *op, struct epd_error *err)
{
    struct epd_lease *lease = op->lease;
    struct epd *epd = lease->epd;
    if (epdc_session_lost(epd) == EPD_OK) {
        Epd__V1__Session session;
        Epd__V1__UnbindOpRequest req = EPD__V1__UNBIND_OP_REQUEST__INIT;
        epdc_session_message(epd, &session);
        req.session = &session;
        req.lease = lease->id;
        req.desc_index = op->desc_index;
        req.desc_generation = op->desc_generation;
        enum epd_status status = epdc_session_call(epd, &unbind_op, &req.base, NULL, err);
        if (status == EPD_EBUSY || status == EPD_ETIMEDOUT)
            return status; /* the engine may still use it: keep it, the caller may try again */
    }
    for (struct epd_op **at = &lease->ops; *at; at = &(*at)->next) {
        if (*at == op) {
            *at = op->next;
            break;
        }
    }
    epdc_op_destroy(op, false);
    return EPD_OK;
}

enum epd_status epd_op_unbind(struct epd_op *op, struct epd_error *err)
{
    if (!op)
        return EPD_OK;
    struct epd_lease *lease = op->lease;
    struct epd *epd = lease->epd;
    if (epdc_owner_forked(&lease->owner))
        return epdc_fail(err, EPD_EFORKED, "op belongs to the parent process %d",
                         (int)lease->owner.pid);
    if (op->tickets_end > lease->consumed && epdc_session_lost(epd) == EPD_OK &&
        epdc_ring_posted(lease, op->tickets_end - 1) == 0)
        return epdc_fail(err, EPD_EBUSY, "op is in flight (ticket %llu); wait for it first",
                         (unsigned long long)(op->tickets_end - 1));
    pthread_mutex_lock(&epd->lock);
    enum epd_status status = unbind(op, err);
    pthread_mutex_unlock(&epd->lock);
    return status;
}
