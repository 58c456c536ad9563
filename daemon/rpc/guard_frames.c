#include "daemon/rpc/guard_frames.h"

#define PREFACE "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#define FRAME_MAX 16384u
#define STREAMS_MAX 1024u
#define FLAG_END_STREAM 1u

enum {
    FRAME_DATA = 0,
    FRAME_HEADERS = 1,
    FRAME_RST_STREAM = 3,
    FRAME_SETTINGS = 4,
    FRAME_PING = 6
};

void epd_frames_init(struct epd_frames *f, uint64_t now_ns)
{
    *f = (struct epd_frames){
        .resets = {.tokens = 500, .rate = 200, .burst = 500, .at_ns = now_ns},
        .controls = {.tokens = 500, .rate = 100, .burst = 500, .at_ns = now_ns},
    };
}

bool epd_frames_greeted(const struct epd_frames *f)
{
    return f->side[0].preface == EPD_FRAMES_PREFACE;
}

static bool take(struct epd_frames_bucket *b, uint64_t now)
{
    if (now > b->at_ns) {
        b->tokens += b->rate * (double)(now - b->at_ns) / 1e9;
        b->at_ns = now;
    }
    if (b->tokens > b->burst)
        b->tokens = b->burst;
    b->tokens -= 1;
    return b->tokens >= 0;
}

static void stream_ended(struct epd_frames *f)
{
    if (f->open_streams > 0)
        f->open_streams--;
}

/* A frame of gRPC. NULL, or the limit that is broken. */
static const char *frame_of_server(struct epd_frames *f, uint8_t type, uint8_t flags, uint64_t now)
{
    if (type == FRAME_RST_STREAM) {
        stream_ended(f);
        return take(&f->resets, now) ? NULL : "too many resets";
    }
    if ((type == FRAME_HEADERS || type == FRAME_DATA) && (flags & FLAG_END_STREAM) != 0)
        stream_ended(f);
    /* The client may answer each of these with a PING or an acknowledgement. */
    if (type == FRAME_DATA || type == FRAME_HEADERS || type == FRAME_PING || type == FRAME_SETTINGS)
        f->controls.tokens += 1;
    return NULL;
}

static const char *frame_of_client(struct epd_frames *f, uint8_t type, uint32_t stream,
                                   uint64_t now)
{
    switch (type) {
    case FRAME_RST_STREAM:
        if (stream <= f->last_stream)
            stream_ended(f);
        return take(&f->resets, now) ? NULL : "too many resets";
    case FRAME_SETTINGS:
    case FRAME_PING:
        return take(&f->controls, now) ? NULL : "too many SETTINGS or PING frames";
    case FRAME_HEADERS:
        if (stream <= f->last_stream)
            return NULL; /* trailers */
        f->last_stream = stream;
        return ++f->open_streams <= STREAMS_MAX ? NULL : "too many open streams";
    default:
        return NULL;
    }
}

static uint32_t read_be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* A complete frame header of side 0 (client) or 1 (gRPC). */
static const char *frame(struct epd_frames *f, int side, const uint8_t *h, uint64_t now)
{
    const uint32_t len = read_be32(h) >> 8;
    f->side[side].payload_left = len;
    if (side == 1)
        return frame_of_server(f, h[3], h[4], now);
    if (len > FRAME_MAX)
        return "a frame is too long";
    return frame_of_client(f, h[3], read_be32(h + 5) & 0x7fffffffu, now);
}

const char *epd_frames_inspect(struct epd_frames *f, int side, const uint8_t *at, size_t n,
                               uint64_t now)
{
    struct epd_frames_side *p = &f->side[side];
    while (n > 0) {
        if (side == 0 && p->preface < EPD_FRAMES_PREFACE) {
            if (*at != (uint8_t)PREFACE[p->preface])
                return "it does not speak HTTP/2";
            p->preface++;
            at++, n--;
        } else if (p->payload_left > 0) {
            const size_t skip = n < p->payload_left ? n : p->payload_left;
            p->payload_left -= (uint32_t)skip;
            at += skip, n -= skip;
        } else {
            p->header[p->header_len++] = *at++;
            n--;
            if (p->header_len < EPD_FRAME_HEADER)
                continue;
            p->header_len = 0;
            const char *broken = frame(f, side, p->header, now);
            if (broken != NULL)
                return broken;
        }
    }
    return NULL;
}
