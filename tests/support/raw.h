/* A client without libepd's good manners: control calls with packed messages, tokens by hand. Runs
 * in an agent (gRPC must not be in the test's process). */
#ifndef EPD_TESTS_RAW_H
#define EPD_TESTS_RAW_H

#include <stddef.h>
#include <stdint.h>

#include "proto/control.pb-c.h"
#include "proto/engine.h"
#include "proto/errors.h"

#define RAW_FDS 4

struct raw_session {
    uint64_t id;
    uint8_t key[16];
    uint8_t token[16];
};

/* Attach with versions off by the deltas. */
enum epd_status raw_attach(const char *socket, uint32_t protocol_delta, uint32_t abi_delta,
                           struct raw_session *out, struct epd_error *err);
/* One control call; *reply_out (may be NULL) is freed with protobuf_c_message_free_unpacked. */
enum epd_status raw_call(const char *socket, const char *method, const ProtobufCMessage *request,
                         const ProtobufCMessageDescriptor *reply_type, ProtobufCMessage **reply_out,
                         struct epd_error *err);

struct raw_answer {
    int sock; /* still open; the caller closes it */
    int got;  /* 1 a reply, 0 closed without one, -1 nothing within 5 s */
    struct epd_fd_reply reply;
    int fd[RAW_FDS];
    unsigned fds;
};
/* Connect to the fd socket and send n bytes (0: nothing). */
void raw_redeem(const char *socket, const void *token, size_t n, struct raw_answer *out);
void raw_answer_close(struct raw_answer *a);

#endif
