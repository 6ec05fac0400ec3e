/* What servers of a cluster report about each other: redirections, and the owners of slots.
 * Every accepted report names existing slots and valid addresses. */
#include "fuzz.h"
#include "redis/locate.h"
#include "resp.h"

static void is_address(const struct redis_address *a)
{
    MUST(a->host[0] && strlen(a->host) < sizeof a->host && !strpbrk(a->host, "\r\n\x1b"));
    MUST(atoi(a->port) > 0 && atoi(a->port) < 65536);
}

static int take(void *ctx, unsigned first, unsigned last, const struct redis_address *master,
                struct error *err)
{
    size_t *n = ctx;
    (void)err;
    MUST(first < REDIS_SLOTS && last < REDIS_SLOTS);
    is_address(master);
    ++*n;
    return 0;
}

static void reply(const uint8_t *data, size_t n)
{
    redisReader *reader = resp_reader();
    struct error err = {0};
    size_t ranges = 0;
    void *r = NULL;
    if (redisReaderFeed(reader, (const char *)data, n) == REDIS_OK &&
        redisReaderGetReply(reader, &r) == REDIS_OK && r) {
        if (redis_cluster_slots(r, "asked", take, &ranges, &err) != 0)
            MUST(err.code == ERR_UNAVAILABLE && err.text[0]);
        freeReplyObject(r);
    }
    redisReaderFree(reader);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *text = fuzz_text(data, n);
    struct redis_redirect how;
    if (redis_cluster_redirect(text, "asked", &how)) {
        MUST(how.slot < REDIS_SLOTS);
        is_address(&how.to);
    }
    MUST(redis_cluster_slot(str_of(text)) < REDIS_SLOTS);
    if (n > 0)
        reply(data, n);
    free(text);
    return 0;
}
