/* A Sentinel's reports: the master's address, and later its change. The result is always a master
 * with a valid address, or none and a reason. */
#include "fuzz.h"
#include "peer.h"
#include "redis/locate.h"

#define DRIVES 4

static void is_sound(const struct redis_sentinel *s)
{
    bool is_told = s->state == SENTINEL_TOLD;
    if (is_told) {
        MUST(s->told.host[0] && strlen(s->told.host) < sizeof s->told.host);
        MUST(!strpbrk(s->told.host, " \r\n\x1b"));
        MUST(atoi(s->told.port) > 0 && atoi(s->told.port) < 65536);
    }
    if (s->state == SENTINEL_NOBODY)
        MUST(s->why.code && s->why.text[0] && !strpbrk(s->why.text, "\r\n\x1b"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct redis_url url;
    struct error err;
    struct redis_sentinel s;
    MUST(redis_url_parse("redis://127.0.0.1:26379", NULL, NULL, &url, &err) == 0);
    redis_sentinel_init(&s, &url, 1, "shop", "fuzz");

    peer_expect(&(struct peer_script){.connections = 1, .say = data, .n = n, .only = 1});
    redis_sentinel_ask(&s, MS_NS);
    for (int64_t i = 1; i <= DRIVES; i++) {
        redis_sentinel_drive(&s, i * MS_NS);
        is_sound(&s);
    }
    redis_sentinel_drive(&s, 3600000 * MS_NS); /* a peer that has not answered by then never will */
    MUST(s.state != SENTINEL_ASKING);
    is_sound(&s);

    redis_sentinel_release(&s);
    redis_url_release(&url);
    peer_hang_up();
    return 0;
}
