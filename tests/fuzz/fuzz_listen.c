/* Requests to the real receiver of `webhook listen`: one prints text and accepts every request, one
 * prints JSON and requires a signature. The input is everything that a client sends. An answer is
 * complete; no client that cannot sign gets a message accepted; the output is text that is safe for
 * a terminal, or one JSON document per line; and the receiver keeps running. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ask.h"
#include "base/json.h"
#include "base/text.h"
#include "extra/webhook/listen.h"
#include "fuzz.h"

#define ANSWER_MAX (1 << 20)
#define PRINTED_MAX (1 << 20)
#define PATIENCE_MS 20
#define VARIABLE "OUTBOX_FUZZ_SECRET"

static char answer[ANSWER_MAX + 1], printed[PRINTED_MAX + 1];
static size_t n_printed;
static int printing; /* the end from which the receivers' standard output is read */

static struct peer {
    struct cli cli;
    struct sockaddr_in at;
    pthread_t thread;
    bool verifies; /* and prints JSON */
} peers[2];

static void *serve(void *peer)
{
    struct peer *p = peer;
    struct error err = {0};
    listen_run(&p->cli, &err);
    abort(); /* no stop was requested */
}

/* read_printed appends new output to the part not checked yet. */
static void read_printed(void)
{
    ssize_t k;
    while (n_printed < PRINTED_MAX &&
           (k = read(printing, printed + n_printed, PRINTED_MAX - n_printed)) > 0)
        n_printed += (size_t)k;
    printed[n_printed] = '\0';
}

static void start(struct peer *p)
{
    unsigned port = 0;
    p->cli.args.json = p->verifies;
    const struct webhook_args args = {.address = "127.0.0.1",
                                      .status = 204,
                                      .request_ms = 60000,
                                      .body_max = 65 << 20,
                                      .secret_env = p->verifies ? VARIABLE : NULL};
    memcpy(p->cli.args.own, &args, sizeof args);
    if (pthread_create(&p->thread, NULL, serve, p) != 0)
        abort();
    for (int i = 0; i < 1000 && port == 0; i++) {
        poll(NULL, 0, 10);
        read_printed();
        sscanf(printed, "listening on http://127.0.0.1:%u/", &port);
    }
    MUST(port);
    n_printed = 0;
    p->at = (struct sockaddr_in){.sin_family = AF_INET,
                                 .sin_port = htons((uint16_t)port),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void start_both(void)
{
    int ends[2];
    if (setenv(VARIABLE, "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=", 1) != 0)
        abort();
    if (pipe2(ends, O_CLOEXEC) != 0 || fcntl(ends[0], F_SETPIPE_SZ, PRINTED_MAX) < 0)
        abort();
    if (fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0 || dup2(ends[1], STDOUT_FILENO) < 0)
        abort();
    close(ends[1]);
    printing = ends[0];
    peers[1].verifies = true;
    for (int i = 0; i < 2; i++)
        start(&peers[i]);
}

/* ask returns the number of bytes of the answer. The receiver disconnects a client that stops
 * sending, though not always at once. */
static size_t ask(const struct peer *peer, const void *p, size_t n)
{
    static const struct timeval patience = {.tv_usec = PATIENCE_MS * 1000};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0)
        abort();
    if (connect(fd, (const struct sockaddr *)&peer->at, sizeof peer->at) != 0)
        abort();
    return ask_over(fd, p, n, answer, ANSWER_MAX);
}

static bool is_json(struct str line)
{
    struct json value;
    return json_parse(line, &value, NULL, NULL) == 0;
}

/* judge_printed checks whole lines; the rest is still to arrive. A document begins with a brace, a
 * line of text never does. */
static void judge_printed(void)
{
    size_t at = 0;
    char *end;
    read_printed();
    while ((end = memchr(printed + at, '\n', n_printed - at))) {
        struct str line = {printed + at, (size_t)(end - printed) - at};
        bool document = line.n > 0 && line.p[0] == '{';
        MUST(document ? is_json(line) : text_plain(line));
        at += line.n + 1;
    }
    n_printed -= at;
    memmove(printed, printed + at, n_printed + 1);
}

static void judge(const struct peer *peer)
{
    int status = 0;
    judge_printed();
    if (!strstr(answer, "\r\n\r\n"))
        return; /* no or incomplete output yet */
    MUST(sscanf(answer, "HTTP/1.%*1[01] %3d ", &status) == 1);
    MUST(status == 204 || status == 100 || status >= 400);
    if (peer->verifies)
        MUST(!strstr(answer, " 204 "));
}

static bool alive(const struct peer *peer)
{
    static const char request[] =
        "POST /hook HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}";
    for (int i = 0; i < 500; i++) {
        if (ask(peer, request, strlen(request)) > 0)
            return strstr(answer, peer->verifies ? " 401 " : " 204 ") != NULL;
    }
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static unsigned asked;
    if (!printing)
        start_both();
    for (int i = 0; i < 2; i++) {
        ask(&peers[i], data, n);
        judge(&peers[i]);
    }
    if (++asked % 64 == 0)
        MUST(alive(&peers[0]) && alive(&peers[1]));
    return 0;
}
