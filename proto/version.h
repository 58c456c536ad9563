/* Versions. The ABI version covers everything shared through memory (ring.h, status.h, layout.h)
 * and between supervisor and engine (engine.h); the protocol version covers control.proto. Both
 * travel in Attach; a mismatch is EPD_EVERSION with both values in the message. */
#ifndef EPD_PROTO_VERSION_H
#define EPD_PROTO_VERSION_H

#ifndef EPD_VERSION
#define EPD_VERSION "0.1.0"
#endif
#define EPD_PROTOCOL_VERSION 1u
#define EPD_ABI_VERSION 1u

#endif
