/* What the engine sees when: an entry's number comes after the rest of it, a sleeper announces
 * itself, and what was posted before a death still counts. */
#include "tests/unit/client/fake.h"

#include "tests/support/trap.h"

static struct fake g_fake;
static uint64_t g_seq_seen;

static void note_seq(void)
{
    g_seq_seen = epd_ring_entry(g_fake.lease.area, g_fake.lease.depth, 0)->seq;
}

/* The entry lies on two pages; its number is on the second. */
static void number_after_payload(void **state)
{
    (void)state;
    fake_init(&g_fake, 8);
    void *area = g_fake.lease.area;
    uint8_t *pages = trap_pages(3);
    CHECK(pages != NULL);
    g_fake.lease.area = pages + TRAP_PAGE - 64 - EPD_RING_HEADER_BYTES;
    g_seq_seen = 99;
    CHECK(trap_set(pages, PROT_READ, note_seq) == 0);
    CHECK(fake_dispatch(&g_fake, NULL) == EPD_OK);
    CHECK(trap_end() == 1 && g_seq_seen == 0);
    note_seq();
    CHECK(g_seq_seen == 1);
    g_fake.lease.area = area;
    CHECK(munmap(pages, 3u * TRAP_PAGE) == 0);
    fake_fini(&g_fake);
}

static void *post_to_a_sleeper(void *arg)
{
    const struct epd_ring_header *h = epd_ring_header_at(g_fake.lease.area);
    const int64_t begin = fake_now_ms();
    bool *seen = arg;
    while (!*seen && fake_now_ms() - begin < 5000)
        *seen = __atomic_load_n(&h->waiters, __ATOMIC_SEQ_CST) != 0;
    fake_post(&g_fake, EPD_OK);
    return NULL;
}

static void sleeper_is_announced(void **state)
{
    (void)state;
    struct epd_result r;
    pthread_t thread;
    bool seen = false;
    fake_init(&g_fake, 8);
    CHECK(fake_dispatch(&g_fake, NULL) == EPD_OK);
    CHECK(pthread_create(&thread, NULL, post_to_a_sleeper, &seen) == 0);
    CHECK(epd_wait(&g_fake.lease, -1, &r) == EPD_OK && r.ticket == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(seen);
    CHECK(epd_ring_header_at(g_fake.lease.area)->waiters == 0);
    fake_fini(&g_fake);
}

static void post_and_die(void)
{
    fake_post(&g_fake, EPD_OK);
    g_fake.page->state = EPD_ENGINE_DAEMON_LOST;
}

/* The engine posts and dies after the waiter has looked at the ring and before it looks for deaths.
 */
static void posted_before_a_death(void **state)
{
    (void)state;
    struct epd_result r;
    fake_init(&g_fake, 8);
    CHECK(fake_dispatch(&g_fake, NULL) == EPD_OK);
    CHECK(trap_set(g_fake.page, PROT_NONE, post_and_die) == 0);
    CHECK(epd_wait(&g_fake.lease, 5000000000, &r) == EPD_OK && r.ticket == 0);
    CHECK(trap_end() == 1);
    CHECK(fake_dispatch(&g_fake, NULL) == EPD_EDAEMONLOST);
    fake_fini(&g_fake);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(number_after_payload),
        cmocka_unit_test(sleeper_is_announced),
        cmocka_unit_test(posted_before_a_death),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
