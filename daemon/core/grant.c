#include "daemon/core/grant.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/util.h"
#include "daemon/core/must.h"

#define SWEEP_MS 500u

struct epd_grants {
    struct epd_grant *first; /* owned */
    uv_timer_t timer;        /* runs while there are grants */
    uint64_t *expired;       /* borrowed counter */
};

bool epd_bytes_equal(const void *a, const void *b, size_t n)
{
    const volatile uint8_t *x = a, *y = b;
    uint8_t differ = 0;
    for (size_t i = 0; i < n; i++)
        differ |= (uint8_t)(x[i] ^ y[i]);
    return differ == 0;
}

void epd_grants_remove(struct epd_grants *grants, struct epd_grant *grant)
{
    struct epd_grant **at = &grants->first;
    while (*at != grant)
        at = &(*at)->next;
    *at = grant->next;
    epd_close_fd(&grant->fd);
    free(grant);
    if (grants->first == NULL)
        (void)uv_timer_stop(&grants->timer); /* always succeeds */
}

static void on_sweep(uv_timer_t *timer)
{
    struct epd_grants *grants = timer->data;
    const uint64_t now = epd_now_ns();
    for (struct epd_grant *g = grants->first, *next; g != NULL; g = next) {
        next = g->next;
        if (g->expires_ns > now)
            continue;
        ++*grants->expired;
        epd_grants_remove(grants, g);
    }
}

struct epd_grants *epd_grants_create(uv_loop_t *loop, uint64_t *expired_counter)
{
    struct epd_grants *grants = epd_must_calloc(sizeof(*grants));
    (void)uv_timer_init(loop, &grants->timer); /* cannot fail */
    grants->timer.data = grants;
    grants->expired = expired_counter;
    return grants;
}

static void on_closed(uv_handle_t *handle)
{
    free(handle->data);
}

void epd_grants_destroy(struct epd_grants *grants)
{
    if (grants == NULL)
        return;
    while (grants->first != NULL)
        epd_grants_remove(grants, grants->first);
    uv_close((uv_handle_t *)&grants->timer, on_closed);
}

enum epd_status epd_grants_issue(struct epd_grants *grants, const struct epd_grant *grant,
                                 uint8_t token_out[EPD_TOKEN_BYTES], struct epd_error *err)
{
    unsigned held = 0;
    for (const struct epd_grant *g = grants->first; g != NULL; g = g->next)
        held += g->peer.uid == grant->peer.uid;
    if (held >= EPD_GRANTS_PER_UID)
        return epd_fail(err, EPD_ELIMIT,
                        "user %u has %u descriptors waiting at the fd socket; "
                        "fetch them first",
                        (unsigned)grant->peer.uid, held);
    int fd = -1;
    if (grant->fd >= 0 && (fd = fcntl(grant->fd, F_DUPFD_CLOEXEC, 0)) < 0)
        return epd_fail_errno(err, "duplicate a descriptor");
    struct epd_grant *g = epd_must_copy(grant, sizeof(*grant));
    g->fd = fd;
    g->expires_ns = epd_now_ns() + EPD_GRANT_TTL_MS * 1000000ull;
    epd_random_bytes(g->token, sizeof(g->token));
    if (grants->first == NULL)
        (void)uv_timer_start(&grants->timer, on_sweep, SWEEP_MS, SWEEP_MS); /* has a callback */
    g->next = grants->first;
    grants->first = g;
    memcpy(token_out, g->token, EPD_TOKEN_BYTES);
    return EPD_OK;
}

struct epd_grant *epd_grants_find(struct epd_grants *grants, const uint8_t token[EPD_TOKEN_BYTES],
                                  const struct epd_peer *peer)
{
    const uint64_t now = epd_now_ns();
    struct epd_grant *found = NULL;
    for (struct epd_grant *g = grants->first; g != NULL; g = g->next)
        if (epd_bytes_equal(g->token, token, EPD_TOKEN_BYTES) && g->peer.uid == peer->uid &&
            g->peer.pid == peer->pid && g->expires_ns > now)
            found = g;
    return found;
}

void epd_grants_remove_session(struct epd_grants *grants, uint64_t session)
{
    for (struct epd_grant *g = grants->first, *next; g != NULL; g = next) {
        next = g->next;
        if (g->session == session)
            epd_grants_remove(grants, g);
    }
}
