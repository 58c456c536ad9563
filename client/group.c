#include "client/internal.h"

#include <string.h>

#include "client/fail.h"

static const struct epdc_method create_group = {EPDC_CONTROL_PREFIX "CreateGroup",
                                                &epd__v1__group_reply__descriptor};
static const struct epdc_method open_group = {EPDC_CONTROL_PREFIX "OpenGroup",
                                              &epd__v1__group_reply__descriptor};
static const struct epdc_method destroy_group = {EPDC_CONTROL_PREFIX "DestroyGroup",
                                                 &epd__v1__empty__descriptor};

static enum epd_status info_fill(struct epd_group_info *out, const Epd__V1__Group *g,
                                 struct epd_error *err)
{
    const Epd__V1__Shape *s = g ? g->shape : NULL;
    if (!s || g->n_seats > EPD_MAX_RANKS || g->n_seats != s->ranks)
        return epdc_fail(err, EPD_EINTERNAL, "daemon's reply describes no group");

    struct epd_group_info info = {
        .size = sizeof(info),
        .id = g->id,
        .ranks = s->ranks,
        .experts = s->experts,
        .max_tokens = s->max_tokens,
        .topk = s->topk,
        .hidden = s->hidden,
        .dtype = s->dtype,
        .mode = s->mode,
        .layout = s->layout,
        .timeout_ms = g->timeout_ms,
        .first_timeout_ms = g->first_timeout_ms,
        .generation = g->generation,
    };
    size_t len = strnlen(g->name, sizeof(info.name) - 1);
    memcpy(info.name, g->name, len);
    for (size_t i = 0; i < g->n_seats; i++) {
        const Epd__V1__Seat *seat = g->seats[i];
        if (seat->rank >= EPD_MAX_RANKS || seat->device >= EPD_MAX_DEVICES)
            return epdc_fail(err, EPD_EINTERNAL, "daemon's reply has rank %u on device %u",
                             seat->rank, seat->device);
        info.device[seat->rank] = (uint8_t)seat->device;
        info.leased += seat->session != 0;
    }
    *out = info;
    return EPD_OK;
}

/* Call and turn a GroupReply into *out. */
static enum epd_status call_for_info(struct epd *epd, const struct epdc_method *method,
                                     const ProtobufCMessage *req, struct epd_group_info *out,
                                     struct epd_error *err)
{
    ProtobufCMessage *reply = NULL;
    pthread_mutex_lock(&epd->lock);
    enum epd_status status = epdc_session_call(epd, method, req, &reply, err);
    pthread_mutex_unlock(&epd->lock);
    if (status != EPD_OK)
        return status;
    status = info_fill(out, ((const Epd__V1__GroupReply *)(const void *)reply)->group, err);
    epdc_reply_free(reply);
    return status;
}

static enum epd_status out_valid(const struct epd *epd, const struct epd_group_info *out,
                                 struct epd_error *err)
{
    if (!epd || !out)
        return epdc_fail(err, EPD_EINVAL, "%s is NULL", epd ? "out" : "epd");
    if (out->size != sizeof(*out))
        return epdc_fail(err, EPD_EINVAL,
                         "epd_group_info.size is %u, expected %zu: initialise it "
                         "with EPD_GROUP_INFO_INIT",
                         out->size, sizeof(*out));
    return epdc_session_usable(epd, err);
}

enum epd_status epd_group_create(struct epd *epd, const struct epd_group_config *config,
                                 struct epd_group_info *out, struct epd_error *err)
{
    enum epd_status status = out_valid(epd, out, err);
    if (status != EPD_OK)
        return status;
    if (!config || config->size != sizeof(*config))
        return epdc_fail(err, EPD_EINVAL,
                         "epd_group_config.size is %u, expected %zu: initialise "
                         "it with EPD_GROUP_CONFIG_INIT",
                         config ? config->size : 0, sizeof(*config));
    if (!config->name)
        return epdc_fail(err, EPD_EINVAL, "name is NULL; a group needs 1..63 of [A-Za-z0-9._-]");
    if (config->placement && (config->ranks < 1 || config->ranks > EPD_MAX_RANKS))
        return epdc_fail(err, EPD_EINVAL, "ranks is %u, must be 1..%u", config->ranks,
                         EPD_MAX_RANKS);

    Epd__V1__Session session;
    Epd__V1__Shape shape = EPD__V1__SHAPE__INIT;
    Epd__V1__CreateGroupRequest req = EPD__V1__CREATE_GROUP_REQUEST__INIT;
    uint32_t placement[EPD_MAX_RANKS];
    uint8_t key[EPDC_KEY_BYTES];
    epdc_session_message(epd, &session);
    shape.ranks = config->ranks;
    shape.experts = config->experts;
    shape.max_tokens = config->max_tokens;
    shape.topk = config->topk;
    shape.hidden = config->hidden;
    shape.dtype = config->dtype;
    shape.mode = config->mode;
    shape.layout = config->layout;
    req.session = &session;
    req.shape = &shape;
    req.name = (char *)(uintptr_t)config->name; /* only read */
    req.timeout_ms = config->timeout_ms;
    req.first_timeout_ms = config->first_timeout_ms;
    req.ephemeral = config->ephemeral != 0;
    req.allow_absent = config->allow_absent != 0;
    if (config->placement) {
        memcpy(placement, config->placement, config->ranks * sizeof(placement[0]));
        req.placement = placement;
        req.n_placement = config->ranks;
    }
    if (config->key) {
        memcpy(key, config->key, sizeof(key));
        req.key = (ProtobufCBinaryData){.len = sizeof(key), .data = key};
    }
    return call_for_info(epd, &create_group, &req.base, out, err);
}

enum epd_status epd_group_open(struct epd *epd, const char *name, struct epd_group_info *out,
                               struct epd_error *err)
{
    enum epd_status status = out_valid(epd, out, err);
    if (status != EPD_OK)
        return status;
    if (!name)
        return epdc_fail(err, EPD_EINVAL, "name is NULL");

    Epd__V1__Session session;
    Epd__V1__OpenGroupRequest req = EPD__V1__OPEN_GROUP_REQUEST__INIT;
    epdc_session_message(epd, &session);
    req.session = &session;
    req.name = (char *)(uintptr_t)name; /* only read */
    return call_for_info(epd, &open_group, &req.base, out, err);
}

enum epd_status epd_group_destroy(struct epd *epd, uint64_t group, uint32_t force,
                                  struct epd_error *err)
{
    if (!epd)
        return epdc_fail(err, EPD_EINVAL, "epd is NULL");
    enum epd_status status = epdc_session_usable(epd, err);
    if (status != EPD_OK)
        return status;

    Epd__V1__Session session;
    Epd__V1__DestroyGroupRequest req = EPD__V1__DESTROY_GROUP_REQUEST__INIT;
    epdc_session_message(epd, &session);
    req.session = &session;
    req.group = group;
    req.force = force != 0;
    pthread_mutex_lock(&epd->lock);
    status = epdc_session_call(epd, &destroy_group, &req.base, NULL, err);
    pthread_mutex_unlock(&epd->lock);
    return status;
}
