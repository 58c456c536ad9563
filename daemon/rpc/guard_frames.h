/* What the frame guard knows of one connection's HTTP/2 frames, and its limits (guard.h states
 * them). Pure bookkeeping; no thread rule. */
#ifndef EPD_RPC_GUARD_FRAMES_H
#define EPD_RPC_GUARD_FRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EPD_FRAMES_PREFACE 24u
#define EPD_FRAME_HEADER 9u

struct epd_frames_bucket {
    double tokens, rate, burst; /* rate: a second */
    uint64_t at_ns;
};

/* Where in the stream of frames of one side the reading stands. */
struct epd_frames_side {
    uint8_t header[EPD_FRAME_HEADER];
    size_t header_len;
    uint32_t payload_left;
    size_t preface; /* bytes of it seen; the client's side only */
};

struct epd_frames {
    uint32_t open_streams, last_stream;
    struct epd_frames_bucket resets, controls;
    struct epd_frames_side side[2]; /* 0: client, 1: gRPC */
};

void epd_frames_init(struct epd_frames *frames, uint64_t now_ns);
/* Read n bytes that `side` sent, in whatever pieces. NULL, or the limit that they break (static
 * text); not to be called again then. */
const char *epd_frames_inspect(struct epd_frames *frames, int side, const uint8_t *at, size_t n,
                               uint64_t now_ns);
/* The client's preface is complete. */
bool epd_frames_greeted(const struct epd_frames *frames);

#endif
