#include "client/epdctl/ctl.h"

#include <getopt.h>
#include <stdio.h>

#include "proto/control.pb-c.h"
#include "proto/health.pb-c.h"

/* The answer for probes: grpc.health.v1 says serving or not, GetStatus says why. */

static enum epd_status check(struct ctl *ctl, const char *service, bool *serving_out,
                             struct epd_error *err)
{
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    ProtobufCMessage *m = NULL;
    request.service = (char *)(uintptr_t)service;
    const enum epd_status status =
        ctl_call(ctl, "/grpc.health.v1.Health/Check", &request.base,
                 &grpc__health__v1__health_check_response__descriptor, &m, err);
    if (status != EPD_OK)
        return status;
    *serving_out = ((const Grpc__Health__V1__HealthCheckResponse *)(const void *)m)->status ==
                   GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING;
    protobuf_c_message_free_unpacked(m, NULL);
    return EPD_OK;
}

static enum epd_status get_status(struct ctl *ctl, Epd__V1__StatusReply **out,
                                  struct epd_error *err)
{
    const Epd__V1__StatusRequest request = EPD__V1__STATUS_REQUEST__INIT;
    ProtobufCMessage *m = NULL;
    const enum epd_status status =
        ctl_call(ctl, "GetStatus", &request.base, &epd__v1__status_reply__descriptor, &m, err);
    *out = (void *)m;
    return status;
}

static void print(const struct ctl *ctl, bool serving, const Epd__V1__StatusReply *reply)
{
    const char *state = reply != NULL ? reply->state : serving ? "serving" : "not serving";
    if (ctl->json) {
        json_t *problems = json_array();
        for (size_t i = 0; reply != NULL && i < reply->n_problems; i++)
            (void)json_array_append_new(problems, json_string(reply->problems[i]));
        ctl_json(ctl, json_pack("{s:b, s:s, s:o}", "healthy", (int)serving, "state", state,
                                "problems", problems));
        return;
    }
    (void)printf("%s\n", state);
    for (size_t i = 0; reply != NULL && i < reply->n_problems; i++)
        (void)printf("problem: %s\n", reply->problems[i]);
}

static int run(struct ctl *ctl)
{
    static const struct option options[] = {{"service", required_argument, NULL, 's'},
                                            {NULL, 0, NULL, 0}};
    const char *service = "";
    opterr = 0;
    for (int c; (c = getopt_long(ctl->argc, ctl->argv, "", options, NULL)) != -1;) {
        if (c != 's')
            return ctl_usage(ctl, "unknown option \"%s\"", ctl->argv[optind - 1]);
        service = optarg;
    }
    if (optind < ctl->argc)
        return ctl_usage(ctl, "unexpected argument \"%s\"", ctl->argv[optind]);
    struct epd_error err = {.status = EPD_OK};
    bool serving = false;
    if (check(ctl, service, &serving, &err) != EPD_OK)
        return ctl_report(ctl, &err);
    Epd__V1__StatusReply *reply = NULL;
    if (service[0] == 0 && get_status(ctl, &reply, &err) != EPD_OK)
        return ctl_report(ctl, &err);
    print(ctl, serving, reply);
    const bool degraded = reply != NULL && reply->n_problems > 0;
    if (reply != NULL)
        epd__v1__status_reply__free_unpacked(reply, NULL);
    return !serving ? CTL_FAILED : degraded && ctl->strict ? CTL_DEGRADED : CTL_OK;
}

const struct ctl_verb ctl_verb_health = {
    .name = "health",
    .args = "[--service NAME]",
    .summary = "Is the daemon serving (exit code), and if not, why",
    .run = run,
    .help = "\n  --service NAME  \"liveness\" (the loop answers), \"readiness\", or the whole "
            "server (default)\n",
};
