#include "rabbitmq_server.h"

#include <amqp_tcp_socket.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sink.h"

#define LINE 4096

static void exec_helper(const int to[2], const int from[2])
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    dup2(to[0], STDIN_FILENO);
    dup2(from[1], STDOUT_FILENO);
    close(to[1]);
    close(from[0]);
    execl("/usr/bin/python3", "python3", TESTS_DIR "/lib/broker_rabbitmq.py", (char *)NULL);
    _exit(127);
}

void rabbitmq_server_start(struct rabbitmq_server *s)
{
    int to[2], from[2];
    char line[LINE];
    if (s->pid)
        return;
    assert_int_equal(pipe2(to, O_CLOEXEC), 0);
    assert_int_equal(pipe2(from, O_CLOEXEC), 0);
    fflush(NULL);
    s->pid = fork();
    assert_true(s->pid >= 0);
    if (s->pid == 0)
        exec_helper(to, from);
    close(to[0]);
    close(from[1]);
    s->to = fdopen(to[1], "w");
    s->from = fdopen(from[0], "r");
    if (!fgets(line, sizeof line, s->from))
        fail_msg("rabbitmq-server did not start");
    assert_int_equal(sscanf(line, "%d %d %255s", &s->port, &s->tls_port, s->dir), 3);
}

void rabbitmq_server_end(struct rabbitmq_server *s)
{
    if (!s->pid)
        return;
    rabbitmq_server_hang_up(s);
    fclose(s->to);
    waitpid(s->pid, NULL, 0);
    fclose(s->from);
    *s = (struct rabbitmq_server){0};
}

const char *rabbitmq_server_tell(struct rabbitmq_server *s, const char *fmt, ...)
{
    static char line[LINE];
    va_list ap;
    va_start(ap, fmt);
    vfprintf(s->to, fmt, ap);
    va_end(ap);
    fputc('\n', s->to);
    fflush(s->to);
    if (!fgets(line, sizeof line, s->from))
        fail_msg("the helper exited after: %s", fmt);
    return line;
}

void rabbitmq_server_hang_up(struct rabbitmq_server *s)
{
    if (s->client)
        amqp_destroy_connection(s->client);
    s->client = NULL;
}

static void good(amqp_rpc_reply_t r, const char *what)
{
    if (r.reply_type != AMQP_RESPONSE_NORMAL)
        fail_msg("%s: reply %d, %s", what, r.reply_type, amqp_error_string2(r.library_error));
}

static amqp_connection_state_t client_of(struct rabbitmq_server *s)
{
    if (s->client)
        return s->client;
    s->client = amqp_new_connection();
    amqp_socket_t *socket = amqp_tcp_socket_new(s->client);
    assert_int_equal(amqp_socket_open(socket, "127.0.0.1", s->port), 0);
    good(amqp_login(s->client, "/", 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, "guest", "guest"),
         "login");
    amqp_channel_open(s->client, 1);
    good(amqp_get_rpc_reply(s->client), "channel.open");
    return s->client;
}

static amqp_bytes_t bytes(const char *s)
{
    return amqp_cstring_bytes(s);
}

void rabbitmq_server_declare(struct rabbitmq_server *s, const char *exchange, bool durable)
{
    amqp_connection_state_t c = client_of(s);
    amqp_exchange_declare(c, 1, bytes(exchange), bytes("topic"), 0, durable, 0, 0,
                          amqp_empty_table);
    good(amqp_get_rpc_reply(c), "exchange.declare");
}

static amqp_table_entry_t text_entry(const char *name, const char *value)
{
    return (amqp_table_entry_t){
        .key = bytes(name), .value = {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = bytes(value)}};
}

void rabbitmq_server_queue(struct rabbitmq_server *s, const char *queue, int max)
{
    amqp_connection_state_t c = client_of(s);
    amqp_table_entry_t with[] = {
        text_entry("x-queue-type", "quorum"),
        text_entry("x-overflow", "reject-publish"),
        {.key = bytes("x-max-length"), .value = {.kind = AMQP_FIELD_KIND_I32, .value.i32 = max}},
    };
    amqp_table_t arguments = {.num_entries = max > 0 ? 3 : 1, .entries = with};
    amqp_queue_declare(c, 1, bytes(queue), 0, 1, 0, 0, arguments);
    good(amqp_get_rpc_reply(c), "queue.declare");
}

void rabbitmq_server_bind(struct rabbitmq_server *s, const char *queue, const char *exchange,
                          const char *key)
{
    amqp_connection_state_t c = client_of(s);
    amqp_queue_bind(c, 1, bytes(queue), bytes(exchange), bytes(key), amqp_empty_table);
    good(amqp_get_rpc_reply(c), "queue.bind");
}

void rabbitmq_server_delete(struct rabbitmq_server *s, const char *exchange, const char *queue)
{
    amqp_connection_state_t c = client_of(s);
    if (queue) {
        amqp_queue_delete(c, 1, bytes(queue), 0, 0);
        good(amqp_get_rpc_reply(c), "queue.delete");
    }
    if (exchange) {
        amqp_exchange_delete(c, 1, bytes(exchange), 0);
        good(amqp_get_rpc_reply(c), "exchange.delete");
    }
}

void rabbitmq_server_purge(struct rabbitmq_server *s, const char *queue)
{
    amqp_connection_state_t c = client_of(s);
    amqp_queue_purge(c, 1, bytes(queue));
    good(amqp_get_rpc_reply(c), "queue.purge");
}

bool rabbitmq_server_get(struct rabbitmq_server *s, const char *queue, amqp_message_t *ret,
                         char key[256])
{
    amqp_connection_state_t c = client_of(s);
    amqp_maybe_release_buffers(c);
    amqp_rpc_reply_t r = amqp_basic_get(c, 1, bytes(queue), 1);
    good(r, "basic.get");
    if (r.reply.id == AMQP_BASIC_GET_EMPTY_METHOD)
        return false;
    const amqp_basic_get_ok_t *ok = r.reply.decoded;
    if (key)
        snprintf(key, 256, "%.*s", (int)ok->routing_key.len, (const char *)ok->routing_key.bytes);
    good(amqp_read_message(c, 1, ret, 0), "message");
    return true;
}
