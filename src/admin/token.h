/* token.h: the tokens that a relay's HTTP server asks for. */
#ifndef ADMIN_TOKEN_H
#define ADMIN_TOKEN_H

#include <stdbool.h>

#include "base/err.h"
#include "base/str.h"

#define TOKEN_MIN 16
#define TOKEN_MAX 256
#define TOKENS_MAX 8

struct tokens;

/* token_load reads tokens from a file (one to a line; blank lines and those that start with # don't
 * count) or from an environment variable (separated by blanks). Either may be NULL; with both, each
 * of them is good. Several are good at once, so that one can be replaced without a gap. A token is
 * TOKEN_MIN to TOKEN_MAX printable ASCII characters without a blank. ERR_CONFIG says what is wrong
 * with which of them, and never repeats one. */
int token_load(const char *file, const char *variable, struct tokens **ret, struct error *err);
/* token_free wipes them. NULL is fine. */
void token_free(struct tokens *t);

/* token_matches says whether `given` is one of them. How long it takes depends neither on the
 * tokens, nor on how much of one was guessed. */
bool token_matches(const struct tokens *t, struct str given);
/* token_variable checks the name of an environment variable. A token given in its place is not
 * repeated. */
int token_variable(const char *name, struct error *err);

#endif
