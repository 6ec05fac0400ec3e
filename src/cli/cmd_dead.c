/* cmd_dead.c: outbox dead, which lists dead letters, retries and drops them. */
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "cli/cli.h"

struct dead_args {
    const char *consumer, *type;
    int64_t limit; /* 0: all */
    bool all;
};

/* clang-format off */
#define OPTION_CONSUMER {"consumer", "NAME", NULL, "only dead letters of this consumer", \
    option_checked, OWN(dead_args, consumer), .check = store_name_check}
#define OPTION_TYPE {"type", "PATTERN", NULL, "only event types that match; * matches anything", \
    option_text, OWN(dead_args, type)}
#define OPTION_ALL {"all", NULL, "no", \
    "all dead letters, or all that match --consumer and --type", option_bool, OWN(dead_args, all)}
/* clang-format on */

static const struct option_def list_options[] = {
    OPTION_CONSUMER,
    OPTION_TYPE,
    {"limit", "N", NULL, "maximum number to list; all if not given", option_long,
     OWN(dead_args, limit), .min = 1, .max = INT32_MAX, .env = true},
    OPTION_JSON,
    OPTION_END,
};
static const struct option_def show_options[] = {OPTION_CONSUMER, OPTION_JSON, OPTION_END};
static const struct option_def retry_options[] = {
    OPTION_CONSUMER, OPTION_TYPE, OPTION_ALL, OPTION_DRY_RUN, OPTION_JSON, OPTION_END,
};
static const struct option_def drop_options[] = {
    OPTION_CONSUMER, OPTION_TYPE, OPTION_ALL, OPTION_DRY_RUN, OPTION_YES, OPTION_JSON, OPTION_END,
};

/* ---- list and show ---- */

static struct dead_query query_of(const struct cli *cli)
{
    const struct dead_args *a = cli_own(cli);
    return (struct dead_query){
        .consumer = a->consumer,
        .id = cli->args.pos[0], /* NULL: all */
        .type = a->type,
        .limit = (size_t)a->limit,
    };
}

static int list_letter(void *listing, const struct dead_letter *d)
{
    return listing_add(listing, d);
}

static int dead_list(struct cli *cli, struct error *err)
{
    struct dead_query q = query_of(cli);
    struct listing l;
    if (output_listing(cli, &l, fields_dead_letter,
                       "consumer seq id~~ type key attempts dead_at retrying error~", err) != 0)
        return -1;
    int r = listing_end(&l, cli->st->ops->dead(cli->st, &q, list_letter, &l, err), err);
    if (r == 0 && l.n == 0 && !cli->args.json)
        fputs("no dead letters\n", stderr);
    return r;
}

/* Letters being shown. (1) If failed, err is filled in. */
struct shown {
    const struct cli *cli;
    int64_t n;
    bool failed;
    struct error *err;
};

static int show_letter(void *ctx, const struct dead_letter *d)
{
    struct shown *s = ctx;
    if (s->n++ && !s->cli->args.json)
        putchar('\n');
    s->failed = output_pairs(s->cli, fields_dead_letter, PAIRS_DEAD_LETTER, d, s->err) != 0;
    return s->failed;
}

static int letter_not_found(const struct cli *cli, struct error *err)
{
    const struct dead_args *a = cli_own(cli);
    const char *id = cli->args.pos[0], *hint = "`outbox dead list` lists all dead letters";
    if (a->consumer)
        return err_set(err, ERR_NOTFOUND, "consumer \"%s\" has no dead letter \"%s\"; %s",
                       a->consumer, id, hint);
    return err_set(err, ERR_NOTFOUND, "there is no dead letter \"%s\"; %s", id, hint);
}

/* Shows the letters of an event: one for each consumer that has buried it. */
static int dead_show(struct cli *cli, struct error *err)
{
    struct dead_query q = query_of(cli);
    struct shown s = {.cli = cli, .err = err};
    if (cli->st->ops->dead(cli->st, &q, show_letter, &s, err) != 0 || s.failed)
        return -1;
    return s.n > 0 ? 0 : letter_not_found(cli, err);
}

/* ---- retry and drop ---- */

/* What happens to the letters of each consumer. */
enum deed { COUNT, RETRY, DROP };

/* How many letters each consumer has, of those that have any. */
struct tally {
    struct share {
        const char *consumer;
        int64_t n;
    } * share;
    size_t n;
    int64_t sum;
};

static int count_letter(void *ctx, const struct dead_letter *d)
{
    /* A letter being retried becomes a dead letter again only when its event has used up its
     * attempts. */
    if (!d->retrying)
        ++*(int64_t *)ctx;
    return 0;
}

/* Counts, retries or drops the letters, one consumer after the other. */
static int change_letters(struct cli *cli, enum deed deed, struct tally *ret, struct error *err)
{
    const struct store_ops *ops = cli->st->ops;
    struct dead_query q = query_of(cli);
    const char *only = q.consumer;
    struct consumer_info *c;
    size_t n;
    if (ops->consumer_list(cli->st, NULL, &cli->arena, &c, &n, err) != 0)
        return -1;
    *ret = (struct tally){.share = arena_zalloc(&cli->arena, n + 1, sizeof(struct share))};
    if (!ret->share)
        return err_nomem(err);

    for (size_t i = 0; i < n; i++) {
        int64_t done = 0;
        int r = -1;
        q.consumer = c[i].spec.name;
        if (only && strcmp(only, q.consumer) != 0)
            continue;
        switch (deed) {
        case COUNT: r = ops->dead(cli->st, &q, count_letter, &done, err); break;
        case RETRY: r = ops->dead_retry(cli->st, &q, &done, err); break;
        case DROP: r = ops->dead_drop(cli->st, &q, &done, err); break;
        }
        if (r != 0)
            return -1;
        if (done > 0)
            ret->share[ret->n++] = (struct share){q.consumer, done};
        ret->sum += done;
    }
    return 0;
}

/* ---- the result ---- */

/* "mail 2, search 1" */
static void add_shares(struct buf *b, const struct tally *t)
{
    for (size_t i = 0; i < t->n; i++)
        output_addf(b, "%s%s %lld", i ? ", " : "", t->share[i].consumer, (long long)t->share[i].n);
}

/* The result of `dead retry` or `dead drop`, or with --dry-run the result it would have. */
struct change {
    struct tally tally;
    bool dropped, retried, dry_run;
};

static void shares_json(struct buf *b, const void *row)
{
    const struct tally *t = &((const struct change *)row)->tally;
    buf_addc(b, '{');
    for (size_t i = 0; i < t->n; i++)
        listing_member_int(b, t->share[i].consumer, t->share[i].n);
    buf_addc(b, '}');
}

#define AT(member) .at = offsetof(struct change, member)
#define IF(member) .also = offsetof(struct change, member), .maybe = true, .optional = true
static const struct listing_field fields_change[] = {
    {"retried", LISTING_INT, AT(tally.sum), "dead retry: letters queued for retry", IF(retried)},
    {"dropped", LISTING_INT, AT(tally.sum), "dead drop: letters deleted", IF(dropped)},
    {"dry_run", LISTING_BOOL, AT(dry_run), "true: nothing was done"},
    {"consumers", LISTING_OWN, .json = shares_json, .kind = "object",
     .help = "number of these letters per consumer"},
    {NULL},
};
#undef AT
#undef IF

/* "3 dead letters dropped: mail 2, search 1" */
static void change_text(struct buf *b, const void *row)
{
    const struct change *o = row;
    buf_addf(b, "%s %s%s%s", human_count(o->tally.sum, "dead letter"),
             o->dry_run ? "would be " : "", o->dropped ? "dropped" : "queued for retry",
             o->tally.n > 0 ? ": " : "");
    add_shares(b, &o->tally);
    buf_addc(b, '\n');
}

/* Either an ID or --all says which letters to change. */
static int change_check(struct cli *cli, struct error *err)
{
    const struct dead_args *a = cli_own(cli);
    bool by_id = cli->args.n_pos > 0;
    if (a->all != by_id)
        return 0;
    if (by_id)
        return commands_usage(err, "dead %s takes an ID or --all, not both", cli->cmd->sub);
    return commands_usage(err, "dead %s needs an ID, or --all", cli->cmd->sub);
}

/* Asks before letters are deleted. */
static int confirm_drop(struct cli *cli, struct error *err)
{
    struct tally t;
    struct buf b;
    if (change_letters(cli, COUNT, &t, err) != 0)
        return -1;
    if (t.sum == 0)
        return 0;

    buf_init(&b, 65536);
    add_shares(&b, &t);
    int r = output_confirm(cli, err, "delete %s%s: %.400s", human_count(t.sum, "dead letter"),
                           t.n > 1 ? " of several consumers" : "", buf_cstr(&b));
    buf_release(&b);
    return r;
}

/* `dead retry` and `dead drop`. */
static int change_run(struct cli *cli, struct error *err)
{
    struct change done = {.dry_run = cli->args.dry_run};
    done.dropped = strcmp(cli->cmd->sub, "drop") == 0;
    done.retried = !done.dropped;
    enum deed deed = done.dropped ? DROP : RETRY;
    if (done.dry_run)
        deed = COUNT;
    if (deed == DROP && !cli->args.yes && confirm_drop(cli, err) != 0)
        return -1;

    if (change_letters(cli, deed, &done.tally, err) != 0)
        return -1;
    if (cli->args.n_pos > 0 && done.tally.sum == 0)
        return letter_not_found(cli, err);
    return output_result(cli, fields_change, &done, change_text, err);
}

const struct command cmd_dead[] = {
    {"dead", "list", NULL, "list dead letters", .options = list_options, .opens = OPENS_STORE,
     .json = JSON_ARRAY(fields_dead_letter), .run = dead_list},
    {"dead", "show", "ID", "show a dead letter, by event id or sequence number",
     .options = show_options, .min = 1, .max = 1, .opens = OPENS_STORE,
     .json = JSON_LINES(fields_dead_letter), .run = dead_show},
    {"dead", "retry", "ID | --all", "retry dead letters, with a fresh set of attempts",
     .options = retry_options, .max = 1, .opens = OPENS_STORE, .json = JSON_OBJECT(fields_change),
     .check = change_check, .run = change_run},
    {"dead", "drop", "ID | --all", "delete dead letters", .options = drop_options, .max = 1,
     .opens = OPENS_STORE, .json = JSON_OBJECT(fields_change), .check = change_check,
     .run = change_run},
    {NULL},
};
