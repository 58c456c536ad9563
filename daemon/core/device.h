/* A device: one epd-engine process, started, watched, killed when it stalls, restarted with
 * backoff. What an engine has to be told after a restart is the owner's business
 * (epd_device_owner). Thread rule: the loop's thread. */
#ifndef EPD_CORE_DEVICE_H
#define EPD_CORE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "daemon/core/fsm.h"
#include "daemon/core/link.h"

enum epd_device_state {
    EPD_DEVICE_IDLE,       /* not started yet */
    EPD_DEVICE_STARTING,   /* first incarnation: spawned, handshake or replay not complete */
    EPD_DEVICE_RUNNING,    /* takes work */
    EPD_DEVICE_DYING,      /* lost or killed, not reaped: it may still write */
    EPD_DEVICE_BACKOFF,    /* reaped; the next incarnation waits for its turn */
    EPD_DEVICE_RESTARTING, /* later incarnation: handshake or replay not complete */
    EPD_DEVICE_FAILED,     /* died too often; tried again once a minute */
    EPD_DEVICE_STOPPING,   /* told to leave */
    EPD_DEVICE_STOPPED,    /* left */
};

extern const struct epd_fsm epd_device_fsm;

struct epd_device;

struct epd_device_options {
    uv_loop_t *loop;
    const char *engine_path; /* borrowed */
    unsigned index;
    int lock_fd; /* borrowed */
    uint32_t workers, spin_us, log_level;
    uint64_t stall_ms, backoff_ms, restart_max;
};

/* Calls to the owner of all devices. */
struct epd_device_owner {
    /* CONFIG is answered: introduce peers and replay objects, then call epd_device_ready. */
    void (*configured)(void *arg, struct epd_device *device);
    void (*running)(void *arg, struct epd_device *device);
    /* Reaped (it writes no more); its pending requests have been failed. */
    void (*down)(void *arg, struct epd_device *device);
    void (*changed)(void *arg, struct epd_device *device); /* any change of state */
    void (*report)(void *arg, struct epd_device *device, const struct epd_msg_epoch *msg);
    void *arg;
};

struct epd_device *epd_device_create(const struct epd_device_options *options,
                                     const struct epd_device_owner *owner);
/* Stopped or never started; frees in the loop. NULL is fine. */
void epd_device_destroy(struct epd_device *device);

void epd_device_start(struct epd_device *device);
/* End of the replay. err: it failed; the engine is killed and tried again. */
void epd_device_ready(struct epd_device *device, const struct epd_error *err);
/* SIGKILL and restart; `why` is shown. Nothing happens to a device without a process. */
void epd_device_kill(struct epd_device *device, const char *why);
/* STOP, SIGKILL after grace_ms; the state becomes stopped (see owner.changed). */
void epd_device_stop(struct epd_device *device, uint64_t grace_ms);

/* As epd_link_request; h.bytes is set by the caller. EPD_EDEVICE when the engine takes no messages:
 * fn is not called then. */
enum epd_status epd_device_request(struct epd_device *device, struct epd_msg_header *msg,
                                   const int *fds, unsigned n_fds, epd_link_fn fn, void *arg);

unsigned epd_device_index(const struct epd_device *device);
enum epd_device_state epd_device_state(const struct epd_device *device);
/* starting | running | restarting | failed | stopped */
const char *epd_device_state_name(const struct epd_device *device);
static inline bool epd_device_running(const struct epd_device *device)
{
    return epd_device_state(device) == EPD_DEVICE_RUNNING;
}
/* The engine takes messages: handshake done and not lost. */
bool epd_device_configured(const struct epd_device *device);
/* 1, 2, ...: of the engine now or last. */
uint64_t epd_device_incarnation(const struct epd_device *device);

/* Descriptors of the current incarnation, borrowed: status page, doorbell, bell. -1: none. */
#define EPD_DEVICE_FDS 3u
const int *epd_device_fds(const struct epd_device *device);

struct epd_device_info {
    unsigned index, workers;
    unsigned seats; /* this and chunks are left 0: the owner's books have them (status.h) */
    const char *state;
    uint64_t chunks, chunk_bytes;
    uint64_t incarnation, ops, tasks, wakeups, rss_bytes;
    unsigned restarts;
    pid_t pid;       /* 0: none */
    char cause[160]; /* of the last restart */
};
void epd_device_info(const struct epd_device *device, struct epd_device_info *out);

#endif
