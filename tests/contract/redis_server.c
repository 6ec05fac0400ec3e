#include "redis_server.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "peer_server.h"
#include "sink.h"

#define START_MAX 6000 /* tries of 10 ms */

static void exec_server(const struct redis_server *s)
{
    char port[16], bus[16], log[96];
    snprintf(port, sizeof port, "%d", s->port);
    snprintf(bus, sizeof bus, "%d", s->bus);
    snprintf(log, sizeof log, "%s/log", s->dir);
    peer_server_become_nobody();
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* after the change of user, which clears it */
    char cert[96], key[96], ca[96];
    snprintf(cert, sizeof cert, "%s/server.crt", s->dir);
    snprintf(key, sizeof key, "%s/server.key", s->dir);
    snprintf(ca, sizeof ca, "%s/ca.crt", s->dir);
    const char *argv[] = {"redis-server",
                          "--port",
                          "0",
                          "--unixsocket",
                          s->socket,
                          "--dir",
                          s->dir,
                          "--save",
                          "",
                          "--appendonly",
                          "yes",
                          "--appendfsync",
                          "no", /* With everysec, a kill would lose writes that were answered. */
                          "--logfile",
                          log,
                          "--enable-debug-command",
                          "yes",
                          s->port ? "--tls-port" : NULL,
                          port,
                          "--bind",
                          "127.0.0.1",
                          "--tls-cert-file",
                          cert,
                          "--tls-key-file",
                          key,
                          "--tls-ca-cert-file",
                          ca,
                          "--tls-auth-clients",
                          "no",
                          s->cluster ? "--cluster-enabled" : NULL,
                          "yes",
                          "--tls-cluster",
                          "yes",
                          "--cluster-port",
                          bus,
                          NULL};
    execvp(argv[0], (char *const *)(uintptr_t)argv);
    _exit(127);
}

static bool answers(struct redis_server *s)
{
    s->db = redisConnectUnix(s->socket);
    if (s->db && !s->db->err) {
        redisReply *r = redisCommand(s->db, "PING");
        bool good = r && r->type == REDIS_REPLY_STATUS;
        if (r)
            freeReplyObject(r);
        if (good)
            return true;
    }
    if (s->db)
        redisFree(s->db);
    s->db = NULL;
    return false;
}

/* join_cluster assigns all slots to a new server, and waits until it accepts writes. */
static void join_cluster(struct redis_server *s)
{
    redisReply *r = redisCommand(s->db, "CLUSTER ADDSLOTSRANGE 0 16383");
    freeReplyObject(r); /* after a restart the slots are assigned already */
    for (int i = 0; i < START_MAX; i++) {
        r = redis_do(s, "CLUSTER INFO");
        bool good = strstr(r->str, "cluster_state:ok") != NULL;
        freeReplyObject(r);
        if (good)
            return;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    fail_msg("the cluster did not start, see %s", s->dir);
}

void redis_server_start(struct redis_server *s, bool tls)
{
    if (!s->dir[0]) {
        peer_server_folder(s->dir, "/tmp/obrdXXXXXX");
        snprintf(s->socket, sizeof s->socket, "%s/s", s->dir);
        if (tls)
            peer_server_certificates(s->dir);
        s->port = tls ? peer_server_port() : 0;
        s->bus = s->cluster ? s->port + 10000 : 0;
    }
    fflush(NULL);
    s->pid = fork();
    assert_true(s->pid >= 0);
    if (s->pid == 0)
        exec_server(s);
    for (int i = 0; !answers(s); i++) {
        if (i == START_MAX || waitpid(s->pid, NULL, WNOHANG) != 0)
            fail_msg("redis-server did not start, see %s", s->dir);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    if (s->cluster)
        join_cluster(s);
}

void redis_server_kill(struct redis_server *s)
{
    if (s->db)
        redisFree(s->db);
    s->db = NULL;
    if (s->pid <= 0)
        return;
    kill(s->pid, SIGKILL);
    waitpid(s->pid, NULL, 0);
    s->pid = 0;
}

void redis_server_remove(struct redis_server *s)
{
    redis_server_kill(s);
    if (s->dir[0])
        sink_tmp_remove(s->dir);
    *s = (struct redis_server){0};
}

static redisReply *command(struct redis_server *s, const char *fmt, va_list ap)
{
    redisReply *r = redisvCommand(s->db, fmt, ap);
    if (!r)
        fail_msg("%s: %s", fmt, s->db->errstr);
    if (r->type == REDIS_REPLY_ERROR)
        fail_msg("%s: %s", fmt, r->str);
    return r;
}

redisReply *redis_do(struct redis_server *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    redisReply *r = command(s, fmt, ap);
    va_end(ap);
    return r;
}

void redis_set(struct redis_server *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    freeReplyObject(command(s, fmt, ap));
    va_end(ap);
}
