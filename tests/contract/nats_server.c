#include "nats_server.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "peer_server.h"
#include "sink.h"

#define START_MAX 6000 /* tries of 10 ms */

static void write_config(const struct nats_server *s, const char *more)
{
    char path[128], text[4096];
    snprintf(path, sizeof path, "%s/conf", s->dir);
    snprintf(
        text, sizeof text,
        "host: 127.0.0.1\nport: %d\nmax_payload: 2MB\nlog_file: \"%s/log\"\n"
        "jetstream { store_dir: \"%s/js\", max_file_store: 2GB, max_memory_store: 64MB }\n%s\n",
        s->port, s->dir, s->dir, more);
    sink_tmp_write(path, text);
}

static void exec_server(const struct nats_server *s)
{
    char path[128];
    snprintf(path, sizeof path, "%s/conf", s->dir);
    peer_server_become_nobody();
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* after the change of user, which clears it */
    execlp("nats-server", "nats-server", "-c", path, (char *)NULL);
    _exit(127);
}

/* connects logs in as the administrator, if the server runs. */
static bool connects(struct nats_server *s)
{
    char url[64], ca[96];
    natsOptions *o;
    snprintf(url, sizeof url, "nats://127.0.0.1:%d", s->port);
    snprintf(ca, sizeof ca, "%s/ca.crt", s->dir);
    natsOptions_Create(&o);
    natsOptions_SetURL(o, url);
    if (s->token[0])
        natsOptions_SetToken(o, s->token);
    else
        natsOptions_SetUserInfo(o, "admin", "admin");
    natsOptions_SetAllowReconnect(o, false);
    natsStatus st = natsConnection_Connect(&s->nc, o);
    if (st == NATS_SSL_ERROR) {
        natsOptions_SetSecure(o, true);
        natsOptions_LoadCATrustedCertificates(o, ca);
        st = natsConnection_Connect(&s->nc, o);
    }
    natsOptions_Destroy(o);
    if (st != NATS_OK)
        return false;
    assert_int_equal(natsConnection_JetStream(&s->js, s->nc, NULL), NATS_OK);
    return true;
}

static void disconnect(struct nats_server *s)
{
    jsCtx_Destroy(s->js);
    natsConnection_Destroy(s->nc);
    s->js = NULL;
    s->nc = NULL;
}

void nats_server_start(struct nats_server *s, const char *more)
{
    nats_server_start_open(s, more, "");
}

void nats_server_start_open(struct nats_server *s, const char *more, const char *token)
{
    snprintf(s->token, sizeof s->token, "%s", token);
    if (!s->dir[0]) {
        peer_server_folder(s->dir, "/tmp/obntXXXXXX");
        peer_server_certificates(s->dir);
        s->port = peer_server_port();
    }
    write_config(s, more);
    fflush(NULL);
    s->pid = fork();
    assert_true(s->pid >= 0);
    if (s->pid == 0)
        exec_server(s);
    for (int i = 0; !connects(s); i++) {
        if (i == START_MAX || waitpid(s->pid, NULL, WNOHANG) != 0)
            fail_msg("nats-server did not start, see %s", s->dir);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
}

/* reloads counts in the log how often the server has reloaded its configuration. */
static int reloads(const struct nats_server *s)
{
    char path[128];
    int n = 0;
    snprintf(path, sizeof path, "%s/log", s->dir);
    char *log = sink_tmp_read(path, NULL);
    for (const char *p = log; (p = strstr(p, "Reloaded server configuration")); p++)
        n++;
    free(log);
    return n;
}

void nats_server_reload(struct nats_server *s, const char *more)
{
    int before = reloads(s);
    disconnect(s);
    write_config(s, more);
    kill(s->pid, SIGHUP);
    for (int i = 0; reloads(s) == before || !connects(s); i++) {
        assert_true(i < START_MAX);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
}

void nats_server_kill(struct nats_server *s)
{
    disconnect(s);
    if (s->pid <= 0)
        return;
    kill(s->pid, SIGKILL);
    waitpid(s->pid, NULL, 0);
    s->pid = 0;
}

void nats_server_remove(struct nats_server *s)
{
    nats_server_kill(s);
    if (s->dir[0])
        sink_tmp_remove(s->dir);
    *s = (struct nats_server){0};
}

void nats_server_stream(struct nats_server *s, const char *name, const char *json)
{
    char subject[200], body[2000];
    natsMsg *reply = NULL;
    js_DeleteStream(s->js, name, NULL, NULL);
    snprintf(subject, sizeof subject, "$JS.API.STREAM.CREATE.%s", name);
    snprintf(body, sizeof body, "{\"name\":\"%s\",%s", name, json + 1);
    assert_int_equal(natsConnection_RequestString(&reply, s->nc, subject, body, 10000), NATS_OK);
    if (strstr(natsMsg_GetData(reply), "\"error\""))
        fail_msg("%s: %s", body, natsMsg_GetData(reply));
    natsMsg_Destroy(reply);
}

size_t nats_server_count(struct nats_server *s, const char *stream)
{
    jsStreamInfo *info = NULL;
    assert_int_equal(js_GetStreamInfo(&info, s->js, stream, NULL, NULL), NATS_OK);
    size_t n = (size_t)info->State.Msgs;
    jsStreamInfo_Destroy(info);
    return n;
}

natsMsg *nats_server_get(struct nats_server *s, const char *stream, uint64_t seq)
{
    natsMsg *msg = NULL;
    if (js_GetMsg(&msg, s->js, stream, seq, NULL, NULL) != NATS_OK)
        fail_msg("stream %s has no message %llu", stream, (unsigned long long)seq);
    return msg;
}
