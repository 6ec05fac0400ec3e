/* none.c: replaces server.c in a build without libmicrohttpd. */
#include "admin/access.h"
#include "admin/admin.h"

int admin_start(struct admin_config *cfg, const struct admin_door *door, struct admin **ret,
                char ret_url[ADMIN_ADDRESS], struct error *err)
{
    (void)cfg;
    access_tokens_free(door->tokens);
    (void)ret;
    (void)ret_url;
    return err_set(err, ERR_CONFIG,
                   "this outbox was built without an HTTP server; rebuild it with "
                   "libmicrohttpd-dev installed");
}

bool admin_stop(struct admin *s)
{
    (void)s;
    return true;
}

int64_t admin_tick(struct admin *s, int64_t now)
{
    (void)s;
    (void)now;
    return CLOCK_NEVER;
}

void admin_set_tokens(struct admin *s, struct tokens *t)
{
    (void)s;
    access_tokens_free(t);
}
