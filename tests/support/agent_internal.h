/* The functions that run in an agent. */
#ifndef EPD_TESTS_AGENT_INTERNAL_H
#define EPD_TESTS_AGENT_INTERNAL_H

#include "tests/support/agent.h"

int agent_main(int fd, void *arg);

#define AGENT_COMMAND(name)                                                                        \
    void name(struct agent_state *st, const struct agent_cmd *cmd, struct agent_reply *reply)
AGENT_COMMAND(cmd_open);
AGENT_COMMAND(cmd_close);
AGENT_COMMAND(cmd_create);
AGENT_COMMAND(cmd_destroy);
AGENT_COMMAND(cmd_seat);
AGENT_COMMAND(cmd_dispatch);
AGENT_COMMAND(cmd_combine);
AGENT_COMMAND(cmd_release);
AGENT_COMMAND(cmd_wait);
AGENT_COMMAND(cmd_wait_good);
AGENT_COMMAND(cmd_forgive);
AGENT_COMMAND(cmd_rearm);
AGENT_COMMAND(cmd_quiet);
AGENT_COMMAND(cmd_run);
AGENT_COMMAND(cmd_status);
AGENT_COMMAND(cmd_until_lost);

#endif
