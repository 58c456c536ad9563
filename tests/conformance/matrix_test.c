/* test-timeout: 240 */
/* One suite over shapes, layouts, types, routings, placements, process counts and submission
 * styles: real client processes through the public API, every byte compared with the oracle. The
 * list says nothing about the backend (EPD_TEST_BACKEND). EPD_TEST_SEED changes the data. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/conformance/matrix.h"
#include "tests/support/agent.h"
#include "tests/support/check.h"
#include "tests/support/proc.h"
#include "tests/support/rng.h"

#define MAX_PROCESSES 4u

static struct daemon g_daemon;
static uint64_t g_seed;

static void place(struct group_spec *g, const struct conf_case *c)
{
    const uint32_t R = c->R;
    g->has_placement = c->place != PLACE_DEFAULT;
    for (uint32_t r = 0; r < R; r++)
        switch (c->place) {
        case PLACE_BLOCK:
            g->placement[r] = r * c->devices / R;
            break;
        case PLACE_UNEVEN: /* device 0 has all but the last ranks */
            g->placement[r] = r + c->devices > R ? r + c->devices - R : 0;
            break;
        default: /* round robin, and everything on 0 with one device */
            g->placement[r] = r % c->devices;
            break;
        }
}

static struct epd_shape shape_of(const struct conf_case *c)
{
    return (struct epd_shape){
        .ranks = c->R,
        .experts = c->E,
        .max_tokens = c->B,
        .topk = c->K,
        .hidden = c->H,
        .dtype = c->dtype,
        .mode = EPD_MODE_LL,
        .layout = c->layout,
    };
}

static void open_seats(struct agent *a, const struct conf_case *c, uint64_t group)
{
    uint32_t slot[MAX_PROCESSES] = {0};
    struct seat_config s = {
        .w = {.shape = shape_of(c),
              .seed = rng_hash(g_seed, c->R, c->E, (uint64_t)c->K << 32 | c->H),
              .ids_type = c->ids,
              .routing = c->routing,
              .b_pattern = c->b,
              .values = c->values},
        .group = group,
        .sets = c->sets,
        .flags = c->flags,
        .ring_depth = c->depth,
    };
    for (uint32_t r = 0; r < c->R; r++) {
        const uint32_t p = r * c->processes / c->R;
        s.rank = r;
        agent_seat(&a[p], slot[p]++, &s);
    }
}

static void run_case(void **state)
{
    const struct conf_case *c = *state;
    struct agent a[MAX_PROCESSES] = {0};
    struct group_spec g = {.shape = shape_of(c), .timeout_ms = 20000, .ephemeral = 1};
    uint64_t start = now_ns();
    (void)snprintf(g.name, sizeof(g.name), "%.50s", c->name);
    place(&g, c);
    for (uint32_t p = 0; p < c->processes; p++) {
        agent_start(&a[p], &g_daemon);
        agent_open(&a[p]);
    }
    struct agent_reply made = agent_create(&a[0], &g);
    open_seats(a, c, made.v[0]);
    const struct run_args run = {.style = c->style, .steps = c->steps, .seed = g_seed};
    agents_run(a, c->processes, &run);
    for (uint32_t p = 0; p < c->processes; p++)
        agent_end(&a[p]);
    daemon_check_log(&g_daemon);
    measured("%s R %u E %u K %u B %u H %u, %u steps: %.0f ms", routing_name(c->routing), c->R, c->E,
             c->K, c->B, c->H, c->steps, ms_since(start));
}

static int teardown(void **state)
{
    (void)state;
    agents_kill_all();
    return 0;
}

static int group_setup(void **state)
{
    (void)state;
    const char *text = getenv("EPD_TEST_SEED");
    g_seed = text ? strtoull(text, NULL, 0) : 20240229u;
    (void)printf("seed %llu\n", (unsigned long long)g_seed);
    daemon_start(&g_daemon, &(struct daemon_config){.devices = 3, .workers = 2});
    return 0;
}

static int group_teardown(void **state)
{
    (void)state;
    daemon_stop(&g_daemon);
    return 0;
}

int main(void)
{
    struct CMUnitTest tests[CONF_MAX_CASES];
    const struct conf_case *cases;
    const size_t n = conf_cases(&cases);
    check_true(n <= CONF_MAX_CASES, "too many cases");
    memset(tests, 0, sizeof(tests));
    for (size_t i = 0; i < n; i++)
        tests[i] = (struct CMUnitTest){
            .name = cases[i].name,
            .test_func = run_case,
            .teardown_func = teardown,
            .initial_state = (void *)(uintptr_t)&cases[i],
        };
    const char *filter = getenv("EPD_TEST_CASE");
    if (filter)
        cmocka_set_test_filter(filter);
    return _cmocka_run_group_tests("matrix", tests, n, group_setup, group_teardown);
}
