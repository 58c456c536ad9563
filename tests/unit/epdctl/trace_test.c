/* The trace parser: good text, and every kind of bad line with what the message must name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "client/epdctl/trace.h"

#define HEAD "# model=x experts=4 topk=2\n# more\nlayer,seq,token,e0,e1,w0,w1\n"

static enum epd_status parse(const char *text, struct trace *t, struct epd_error *err)
{
    memset(err, 0, sizeof(*err));
    return trace_parse("t.csv", text, strlen(text), t, err);
}

static void test_good(void **state)
{
    (void)state;
    struct trace t;
    struct epd_error err;
    assert_int_equal(parse(HEAD "3,0,0,1,2,5000,2500\n3,0,1,0,3,1,0\r\n7,0,0,3,3,9,9", &t, &err),
                     0);
    assert_int_equal(t.experts, 4);
    assert_int_equal(t.topk, 2);
    assert_int_equal(t.n_layers, 2);
    assert_int_equal(trace_find(&t, 3)->rows, 2);
    assert_int_equal(trace_find(&t, 3)->ids[3], 3);
    assert_true(trace_find(&t, 3)->weights[0] == 0.5f);
    assert_null(trace_find(&t, 4));
    trace_free(&t);
}

static void test_bad(void **state)
{
    (void)state;
    static const struct {
        const char *text, *expect;
    } cases[] = {
        {"", "no rows"},
        {HEAD, "no rows"},
        {"layer,seq,token\n", "experts="},
        {"# experts=4 topk=2\nlayer,seq,token,e0,w0\n", "t.csv:2: the header"},
        {"# experts=9999 topk=2\n", "1..1024"},
        {"# experts=4 topk=33\n", "1..32"},
        {HEAD "3,0,0,1,4,5,5\n", "t.csv:4: an expert id is \"4,5,5\""},
        {HEAD "3,0,0,1,-1,5,5\n", "an expert id"},
        {HEAD "3,0,0,1,2,5\n", "a weight"},
        {HEAD "3,0,0,1,2,5,5,5\n", "a weight"},
        {HEAD "3,0,0,1,2,5,x\n", "a weight"},
        {HEAD "x,0,0,1,2,5,5\n", "t.csv:4: layer is \"x"},
        {HEAD "3,,0,1,2,5,5\n", "seq or token"},
        {HEAD "3,0,0,1,2,5,5\n4,0,0,1,2,5,5\n3,0,1,1,2,5,5\n", "stand together"},
        {HEAD "99999999999999999999,0,0,1,2,5,5\n", "layer"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct trace t;
        struct epd_error err;
        assert_int_equal(parse(cases[i].text, &t, &err), EPD_EINVAL);
        if (strstr(err.message, cases[i].expect) == NULL)
            fail_msg("case %zu: \"%s\" does not name \"%s\"", i, err.message, cases[i].expect);
        assert_int_equal(t.n_layers, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_good), cmocka_unit_test(test_bad)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
