#include "extra/webhook/replay.h"

#include <stdio.h>
#include <stdlib.h>

#include <openssl/evp.h>

#define WAYS 8
#define SETS (REPLAY_MAX / WAYS)
#define DIGEST 16 /* bytes of a digest that are kept */

/* An accepted message. (1) until == 0: the slot is free. */
struct note {
    unsigned char digest[DIGEST];
    int64_t until; /* seconds since 1970; from then on, its timestamp is too old */
};

/* Set-associative: a lookup needs WAYS steps, regardless of the number of notes. */
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

/* Identifies a message by its time and id or, without the time, only by its id. The time comes
 * first and ends with a dot, and is -1 if absent, so that the two forms cannot collide. */
static bool digest_of(const struct signature_message *m, bool with_time, unsigned char out[DIGEST])
{
    unsigned char whole[EVP_MAX_MD_SIZE];
    char head[48];
    long long time = -1;
    if (with_time)
        time = (long long)m->timestamp;
    int n = snprintf(head, sizeof head, "%lld.", time);
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool done = ctx && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) == 1;
    done = done && EVP_DigestUpdate(ctx, head, (size_t)n) == 1;
    done = done && EVP_DigestUpdate(ctx, m->id.p, m->id.n) == 1;
    done = done && EVP_DigestFinal_ex(ctx, whole, NULL) == 1;
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

/* Returns whether a digest is recorded and has not expired. */
static bool has_digest(const struct replay_memory *r, const unsigned char digest[DIGEST],
                       int64_t now_s)
{
    const struct note *set = r->note[set_of(digest)];
    for (size_t i = 0; i < WAYS; i++) {
        bool counts = set[i].until >= now_s && set[i].until != 0;
        if (counts && memcmp(set[i].digest, digest, DIGEST) == 0)
            return true;
    }
    return false;
}

/* Replaces the entry with the same digest, or else the entry that expires first. */
static void put_digest(struct replay_memory *r, const unsigned char digest[DIGEST], int64_t until)
{
    struct note *set = r->note[set_of(digest)], *place = &set[0];
    for (size_t i = 0; i < WAYS; i++) {
        if (set[i].until && memcmp(set[i].digest, digest, DIGEST) == 0) {
            if (set[i].until < until)
                set[i].until = until;
            return;
        }
        if (set[i].until < place->until)
            place = &set[i];
    }
    memcpy(place->digest, digest, DIGEST);
    place->until = until;
}

enum replay replay_known(const struct replay_memory *r, const struct signature_message *m,
                         int64_t now_s)
{
    unsigned char digest[DIGEST];
    if (!digest_of(m, true, digest))
        return REPLAY_REPLAY; /* safer to refuse a message that we cannot look up */
    if (has_digest(r, digest, now_s))
        return REPLAY_REPLAY;
    if (digest_of(m, false, digest) && has_digest(r, digest, now_s))
        return REPLAY_REPEAT;
    return REPLAY_NEW;
}

void replay_accept(struct replay_memory *r, const struct signature_message *m, int64_t now_s)
{
    unsigned char digest[DIGEST];
    int64_t later = m->timestamp > now_s ? m->timestamp : now_s;
    int64_t until = later + SIGNATURE_TOLERANCE_S;
    if (digest_of(m, true, digest))
        put_digest(r, digest, until);
    if (digest_of(m, false, digest))
        put_digest(r, digest, until);
}
