/* signature.h: Standard Webhooks signatures over id.timestamp.body: "v1," and base64 of an
 * HMAC-SHA256, "v1a," and base64 of an ed25519 signature.
 *
 * A secret is written whsec_ and base64 of 24 to 64 bytes. A pair of keys is whsk_, the private
 * one, and whpk_, the public one; base64 of 32 bytes each, where the private one may have the
 * public one behind it, as other programs write it, and we do. Nothing here ever repeats a key in
 * an error. */
#ifndef SINK_SIGNATURE_H
#define SINK_SIGNATURE_H

#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

#define SIGNATURE_KEYS_MAX 8
#define SIGNATURE_TOLERANCE_S 300
#define SIGNATURES_MAX 16 /* in a header; more are not looked at */

struct signature_keys;

enum signature_use { SIGNATURE_SIGN, SIGNATURE_VERIFY };

/* Where keys come from. Either may be NULL. (1) To sign takes secrets and private keys; to verify,
 * public keys are good as well. */
struct signature_source {
    const char *file, *variable;
    enum signature_use use;
};

/* What is signed, and with it. */
struct signature_message {
    struct str id;
    int64_t timestamp; /* seconds since 1970 */
    struct str body;
};

/* signature_keys_load reads keys from a file (one to a line; blank lines and those that start with
 * # don't count) and from an environment variable (separated by blanks). The first is the one in
 * use, those that follow are being rotated in or out: all sign, any verifies. ERR_CONFIG says what
 * is wrong with which of them. */
int signature_keys_load(const struct signature_source *from, struct signature_keys **ret,
                        struct error *err);
void signature_keys_free(struct signature_keys *keys);

/* signature_add appends "v1,... v1a,...": a signature by each key. Sets b->failed when that is
 * impossible. */
void signature_add(struct buf *b, struct signature_keys *keys, const struct signature_message *m);

/* signature_check says why a message is not to be believed; NULL: it is. header is what
 * webhook-signature says, now_s the time, 0 for whatever time. */
const char *signature_check(struct signature_keys *keys, const struct signature_message *m,
                            struct str header, int64_t now_s);

/* signature_timestamp reads what webhook-timestamp says: digits and nothing else. False: it is no
 * time. */
bool signature_timestamp(struct str text, int64_t *ret);

/* signature_new_secret appends a fresh secret. */
int signature_new_secret(struct buf *b, struct error *err);
/* signature_new_pair appends a fresh private key, and to `public` the public one that belongs to
 * it. */
int signature_new_pair(struct buf *b, struct buf *public, struct error *err);
/* signature_public appends the public keys, a line each; ERR_CONFIG if there is none. */
int signature_public(struct buf *b, const struct signature_keys *keys, struct error *err);

#endif
