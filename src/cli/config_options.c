/* config_options.c: the options of the [outbox] section, and how their values are checked. */
#include <ctype.h>
#include <stdlib.h>

#include "admin/admin.h"
#include "admin/access.h"
#include "api/defaults.h"
#include "cli/cli.h"

#define PAYLOAD_LIMIT (INT64_C(64) * 1024 * 1024) /* what the stores' tables allow */

static int set_store(void *field, const char *value, const struct option_def *o, struct error *err)
{
    if (store_url_check(value, err) != 0)
        return -1;
    return option_text(field, value, o, err);
}

static int set_listen(void *field, const char *value, const struct option_def *o, struct error *err)
{
    struct admin_address a;
    if (admin_address_parse(value, &a, err) != 0)
        return -1;
    return option_text(field, value, o, err);
}

static int set_listen_token_env(void *field, const char *value, const struct option_def *o,
                                struct error *err)
{
    if (access_token_variable(value, err) != 0)
        return -1;
    return option_text(field, value, o, err);
}

static int set_listen_hosts(void *field, const char *value, const struct option_def *o,
                            struct error *err)
{
    if (access_hosts_check(value, err) != 0)
        return -1;
    return option_text(field, value, o, err);
}

/* set_listen_mode accepts modes that let the owner connect and have no execute bits. */
static int set_listen_mode(void *field, const char *value, const struct option_def *o,
                           struct error *err)
{
    char *end;
    long mode = strtol(value, &end, 8);
    bool octal = isdigit((unsigned char)*value) && !*end;
    bool fit = (mode & ~0666L) == 0 && (mode & 0600) == 0600;
    (void)o;

    if (!octal || !fit)
        return err_set(err, ERR_CONFIG, "\"%s\" is not a mode for a socket; use 0600, 0660 or 0666",
                       value);
    *(int64_t *)field = mode;
    return 0;
}

/* by enum log_level */
static const char *const level_names[] = {"debug", "info", "warning", "error", NULL};
/* by enum log_format */
static const char *const format_names[] = {"text", "json", NULL};
/* by enum color */
static const char *const color_names[] = {"auto", "always", "never", NULL};

#define AT(field) .at = offsetof(struct settings, field)

const struct option_def config_options[] = {
    {"store", "URL", NULL,
     "database that holds the outbox: postgres://USER@HOST/DB, mariadb://USER@HOST/DB or "
     "sqlite:PATH",
     set_store, AT(store)},
    {"busy-timeout", "DURATION", "5s", "how long to wait for a locked SQLite database", option_span,
     AT(busy_ms), .min = 1},
    {"max-payload", "SIZE", "1MiB", "maximum size of a payload, at most 64MiB", option_size,
     AT(payload_max), .min = 1, .max = PAYLOAD_LIMIT},
    {"log-level", "debug|info|warning|error", "info", "minimum log level", option_choice,
     AT(log_level), .names = level_names},
    {"log-format", "text|json", "text", "log format: text for people, or one JSON object per line",
     option_choice, AT(log_format), .names = format_names},
    {"log-hold", "DURATION", "60s",
     "log at most ten similar lines in this time, then only count them; 0s logs all of them",
     option_span, AT(log_hold_ms)},
    {"color", "auto|always|never", "auto",
     "use colors; auto: on a terminal, unless NO_COLOR is set", option_choice, AT(color),
     .names = color_names},
    DEFAULTS_ROWS(AT),
    {"listen", "ADDRESS:PORT|unix:PATH", NULL,
     "serve /metrics, /livez and /readyz here, such as 127.0.0.1:8025", set_listen, AT(listen)},
    {"listen-token-file", "FILE", NULL,
     "file with the bearer token to require; without one, other machines can only read /livez and "
     "/readyz",
     option_name, AT(listen_token_file)},
    {"listen-token-env", "NAME", NULL, "environment variable with that token", set_listen_token_env,
     AT(listen_token_env)},
    {"listen-hosts", "LIST", NULL, "further host names to accept in the Host header; * accepts any",
     set_listen_hosts, AT(listen_hosts)},
    {"listen-mode", "MODE", "0660", "permissions of the socket unix:PATH", set_listen_mode,
     AT(listen_mode)},
    {"stuck-after", "DURATION", "60s",
     "report not ready if a consumer has work but makes no progress for this long", option_span,
     AT(stuck_ms), .min = 1},
    {"core-dumps", NULL, "no", "allow core dumps and debuggers even if the process holds a secret",
     option_bool, AT(core_dumps)},
    {NULL},
};
