#include "exec_peer.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void *peer_setup(void)
{
    struct peer *p = calloc(1, sizeof *p);
    char text[2 * SINK_PATH_SIZE];
    sink_tmp_new(p->dir);
    snprintf(p->out, sizeof p->out, "%s/out", p->dir);
    snprintf(p->script, sizeof p->script, "%s/deliver", p->dir);
    snprintf(p->away, sizeof p->away, "%s/away", p->dir);
    snprintf(p->url, sizeof p->url, "exec:%s", p->script);
    snprintf(text, sizeof text, "#!/bin/sh\ncat > '%s'/$OUTBOX_ID\n", p->out);
    sink_tmp_write(p->script, text);
    assert_int_equal(chmod(p->script, 0755), 0);
    assert_int_equal(mkdir(p->out, 0755), 0);
    sink_rig_init(&p->rig);
    return p;
}

static void peer_teardown(void *peer)
{
    struct peer *p = peer;
    sink_rig_release(&p->rig);
    sink_tmp_remove(p->dir);
    free(p);
}

static const char *peer_url(void *peer)
{
    return ((struct peer *)peer)->url;
}

static void peer_arrived(void *peer, struct sink_arrivals *got)
{
    struct peer *p = peer;
    DIR *dir = opendir(p->out);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char path[2 * SINK_PATH_SIZE];
        size_t n;
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", p->out, e->d_name);
        char *text = sink_tmp_read(path, &n);
        sink_arrivals_lines(got, text, n);
        free(text);
    }
    closedir(dir);
}

static void peer_break(void *peer)
{
    struct peer *p = peer;
    assert_int_equal(rename(p->script, p->away), 0);
}

static void peer_heal(void *peer)
{
    struct peer *p = peer;
    assert_int_equal(rename(p->away, p->script), 0);
}

static char large[200 * 1024];

static const char *peer_spoil(void *peer, struct sink_item *it, size_t way)
{
    (void)peer;
    memset(large, 'k', sizeof large);
    switch (way) {
    case 0: it->ev.aggregate_id = (struct str){large, sizeof large}; return "OUTBOX_AGGREGATE_ID";
    case 1: it->ev.tenant = (struct str){large, 128 * 1024}; return "OUTBOX_TENANT";
    case 2: it->ev.type = STR("a\0LD_PRELOAD=/tmp/evil.so"); return "OUTBOX_TYPE contains a NUL";
    case 3: it->ev.aggregate_id = STR("\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"); return "NUL";
    default: return NULL;
    }
}

const struct sink_case exec_case = {
    .name = "exec",
    .many = 100,
    .concurrency = 4,
    .flat = true,
    SINK_PEER,
    SINK_PEER_BREAKS,
    .spoil = peer_spoil,
};

int exec_peer_setup(void **state)
{
    struct peer *p = peer_setup();
    setenv("dir", p->dir, 1);
    p->env = "dir";
    *state = p;
    return 0;
}

int exec_peer_teardown(void **state)
{
    peer_teardown(*state);
    return 0;
}

void open_command(struct peer *p, const char *command, int64_t timeout_ms, int concurrency)
{
    snprintf(p->url, sizeof p->url, "exec:%s", command);
    sink_rig_open(&p->rig, (struct sink_config){.url = p->url,
                                                .timeout_ms = timeout_ms,
                                                .concurrency = concurrency,
                                                .exec_env = p->env});
}

struct sink_item *run_one(struct peer *p, const char *command)
{
    open_command(p, command, 0, 1);
    return sink_rig_deliver(&p->rig, "{}");
}

char *read_in(struct peer *p, const char *name)
{
    char path[2 * SINK_PATH_SIZE];
    snprintf(path, sizeof path, "%s/%s", p->dir, name);
    return sink_tmp_read(path, NULL);
}

void make_fifo(struct peer *p)
{
    char path[2 * SINK_PATH_SIZE];
    snprintf(path, sizeof path, "%s/fifo", p->dir);
    assert_int_equal(mkfifo(path, 0644), 0);
}

long read_fifo(struct peer *p)
{
    char path[2 * SINK_PATH_SIZE], text[64];
    snprintf(path, sizeof path, "%s/fifo", p->dir);
    /* Opened for writing as well, the FIFO has no end of file when an earlier writer closes
     * late. */
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    ssize_t n = read(fd, text, sizeof text - 1);
    assert_true(n > 0);
    text[n] = '\0';
    close(fd);
    return atol(text);
}
