/* signature.h: Standard Webhooks signatures: HMAC-SHA256 over id.timestamp.body, "v1," and base64 of it.
 *
 * A secret is written whsec_ and base64 of 24 to 64 bytes. Nothing here ever repeats one in an error. */
#ifndef SINK_SIGNATURE_H
#define SINK_SIGNATURE_H

#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

#define SIGNATURE_KEYS_MAX 8
#define SIGNATURE_TOLERANCE_S 300

struct signature_keys;

/* What is signed, and with it. */
struct signature_message {
    struct str id;
    int64_t timestamp; /* seconds since 1970 */
    struct str body;
};

/* signature_keys_load reads secrets from a file (one to a line; blank lines and those that start with # don't count) and
 * from an environment variable (separated by blanks). Either may be NULL. The first is the one in use, those that follow
 * are being rotated in or out: all sign, any verifies. ERR_CONFIG says what is wrong with which of them. */
int signature_keys_load(const char *file, const char *variable, struct signature_keys **ret, struct error *err);
void signature_keys_free(struct signature_keys *keys);

/* signature_add appends "v1,... v1,...": a signature by each key. Sets b->failed when that is impossible. */
void signature_add(struct buf *b, struct signature_keys *keys, const struct signature_message *m);

/* signature_check says why a message is not to be believed; NULL: it is. header is what webhook-signature says, now_s the
 * time, 0 for whatever time. */
const char *signature_check(struct signature_keys *keys, const struct signature_message *m, struct str header,
                            int64_t now_s);

/* signature_new_secret appends a fresh secret. */
int signature_new_secret(struct buf *b, struct error *err);

#endif
