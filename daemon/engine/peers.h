/* Other engines of the node: their status pages (read-only), doorbells and bell pages.
 *
 * A bell page is engine-private memory of its owner with one cache line for each sending device. A
 * sender, after publishing to the owner's exchange chunks, stores a counter there (seq_cst) and
 * then loads the owner's `sleeping` (seq_cst); if that is 1 it writes the owner's eventfd. The
 * owner sets `sleeping` (seq_cst) and then loads all bells (seq_cst): one of the two sees the
 * other. */
#ifndef EPD_ENGINE_PEERS_H
#define EPD_ENGINE_PEERS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/engine/engine.h"

struct epd_bell {
    uint64_t count __attribute__((aligned(64)));
};
#define EPD_BELL_BYTES 4096u

/* Own bell page and doorbell are created here; the fds are borrowed by the caller (CONFIG reply).
 */
enum epd_status epd_peers_create(uint32_t device, struct epd_peers **out, struct epd_error *err);
void epd_peers_destroy(struct epd_peers *peers);
int epd_peers_doorbell_fd(const struct epd_peers *peers);
int epd_peers_bell_fd(const struct epd_peers *peers);
/* fds: status page, doorbell, bell page; taken over on success. Replaces an older incarnation. */
enum epd_status epd_peers_set(struct epd_peers *peers, uint32_t device, int fds[3],
                              struct epd_error *err);
void epd_peers_gone(struct epd_peers *peers, uint32_t device);
/* Ring the bells of everybody published to since the last flush. True: the own device is among them
 * (another step is due). */
bool epd_peers_flush(struct epd_peers *peers);
/* Remember the bells as they are now; then: did any ring since? (seq_cst) */
void epd_peers_listen(struct epd_peers *peers);
bool epd_peers_rang(const struct epd_peers *peers);

#endif
