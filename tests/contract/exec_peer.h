/* exec_peer.h: commands that the tests of the exec sink run, in a separate folder. */
#ifndef TESTS_CONTRACT_EXEC_PEER_H
#define TESTS_CONTRACT_EXEC_PEER_H

#include "sink.h"

struct peer {
    char dir[SINK_PATH_SIZE], out[SINK_PATH_SIZE + 16], script[SINK_PATH_SIZE + 16],
        away[SINK_PATH_SIZE + 16];
    char url[2 * SINK_PATH_SIZE];
    const char *env; /* the names of our variables that commands get */
    struct sink_rig rig;
};

extern const struct sink_case exec_case;

/* The state of a test is a peer whose sink is not open yet. Commands find its folder in $dir. */
int exec_peer_setup(void **state);
int exec_peer_teardown(void **state);
#define ON_A_COMMAND(fn) cmocka_unit_test_setup_teardown(fn, exec_peer_setup, exec_peer_teardown)

void open_command(struct peer *p, const char *command, int64_t timeout_ms, int concurrency);
/* run_one opens the command and delivers one event to it. */
struct sink_item *run_one(struct peer *p, const char *command);
/* read_in reads a file of the folder; the caller frees the result. */
char *read_in(struct peer *p, const char *name);

/* A FIFO tells us when a command has reached a certain point: `echo $! > $dir/fifo`. read_fifo
 * waits for that, and returns the number. */
void make_fifo(struct peer *p);
long read_fifo(struct peer *p);

extern const struct suite_part exec_environment_tests, exec_end_tests;

#endif
