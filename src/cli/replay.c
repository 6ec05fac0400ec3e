#include "cli/replay.h"

#include <stdio.h>
#include <stdlib.h>

#include <openssl/evp.h>

#define WAYS 8
#define SETS (REPLAY_MAX / WAYS)
#define DIGEST 16 /* bytes of it that are kept */

/* (1) until == 0: free. */
struct note {
    unsigned char digest[DIGEST];
    /* seconds since 1970: later, its timestamp is too old for anybody to believe it */
    int64_t until;
};

/* A note can stand in any place of its set, so that looking one up takes the same few steps however
 * many there are. */
struct replay_memory {
    struct note note[SETS][WAYS];
};

struct replay_memory *replay_new(void)
{
    return calloc(1, sizeof(struct replay_memory));
}

void replay_free(struct replay_memory *r)
{
    free(r);
}

/* digest_of tells ids apart, and messages: those have a time. Both are of a fixed form, so that
 * neither passes for the other. */
static bool digest_of(const struct signature_message *m, bool with_time, unsigned char out[DIGEST])
{
    unsigned char whole[EVP_MAX_MD_SIZE];
    char head[48];
    int n = snprintf(head, sizeof head, "%lld.", with_time ? (long long)m->timestamp : -1LL);
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool done = ctx && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) == 1 &&
                EVP_DigestUpdate(ctx, head, (size_t)n) == 1 &&
                EVP_DigestUpdate(ctx, m->id.p, m->id.n) == 1 &&
                EVP_DigestFinal_ex(ctx, whole, NULL) == 1;
    EVP_MD_CTX_free(ctx);
    if (done)
        memcpy(out, whole, DIGEST);
    return done;
}

static size_t set_of(const unsigned char digest[DIGEST])
{
    size_t n;
    memcpy(&n, digest, sizeof n);
    return n % SETS;
}

static bool has(const struct replay_memory *r, const unsigned char digest[DIGEST], int64_t now_s)
{
    const struct note *set = r->note[set_of(digest)];
    for (size_t i = 0; i < WAYS; i++) {
        bool counts = set[i].until >= now_s && set[i].until != 0;
        if (counts && memcmp(set[i].digest, digest, DIGEST) == 0)
            return true;
    }
    return false;
}

/* put takes the place of the same one, or of the first to be too old. */
static void put(struct replay_memory *r, const unsigned char digest[DIGEST], int64_t until)
{
    struct note *set = r->note[set_of(digest)], *place = &set[0];
    for (size_t i = 0; i < WAYS; i++) {
        if (set[i].until < place->until)
            place = &set[i];
        if (!set[i].until || memcmp(set[i].digest, digest, DIGEST) != 0)
            continue;
        if (set[i].until < until)
            set[i].until = until;
        return;
    }
    memcpy(place->digest, digest, DIGEST);
    place->until = until;
}

enum replay replay_known(const struct replay_memory *r, const struct signature_message *m,
                         int64_t now_s)
{
    unsigned char digest[DIGEST];
    if (!digest_of(m, true, digest))
        return REPLAY_REPLAY; /* rather refuse than not know */
    if (has(r, digest, now_s))
        return REPLAY_REPLAY;
    if (digest_of(m, false, digest) && has(r, digest, now_s))
        return REPLAY_REPEAT;
    return REPLAY_NEW;
}

void replay_accept(struct replay_memory *r, const struct signature_message *m, int64_t now_s)
{
    unsigned char digest[DIGEST];
    int64_t later = m->timestamp > now_s ? m->timestamp : now_s,
            until = later + SIGNATURE_TOLERANCE_S;
    if (digest_of(m, true, digest))
        put(r, digest, until);
    if (digest_of(m, false, digest))
        put(r, digest, until);
}
