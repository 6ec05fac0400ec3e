/* cmd_dead.c: outbox dead, which lists dead letters, retries and drops them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "cli/cli.h"

/* clang-format off */
#define OPTION_CONSUMER {"consumer", "NAME", NULL, "only dead letters of this consumer", \
    options_consumer_name, ARG(dead.consumer)}
#define OPTION_TYPE {"type", "PATTERN", NULL, "only event types that match; * matches anything", \
    option_text, ARG(dead.type)}
#define OPTION_ALL {"all", NULL, "no", \
    "all dead letters, or all that match --consumer and --type", option_bool, ARG(dead.all)}
/* clang-format on */

static const struct option_def list_options[] = {
    OPTION_CONSUMER,
    OPTION_TYPE,
    {"limit", "N", NULL, "maximum number to list; all if not given", option_long, ARG(dead.limit),
     .min = 1, .max = INT32_MAX, .env = true},
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

/* Dead letters being listed. (1) If failed, a visit has filled in err. */
struct letters {
    const struct cli *cli;
    struct listing listing; /* of dead_list */
    int64_t seen;           /* by dead_show */
    bool failed;
    struct error *err;
};

static struct dead_query query_of(const struct args *a)
{
    return (struct dead_query){
        .consumer = a->dead.consumer,
        .id = a->pos[0], /* NULL: all */
        .type = a->dead.type,
        .limit = (size_t)a->dead.limit,
    };
}

static int visit_letters(struct store *st, struct letters *l, dead_visit *visit, struct error *err)
{
    struct dead_query q = query_of(&l->cli->args);
    int r = st->ops->dead(st, &q, visit, l, err);
    return r != 0 || l->failed ? -1 : 0;
}

static int list_letter(void *ctx, const struct dead_letter *d)
{
    struct letters *l = ctx;
    l->failed = listing_add(&l->listing, d, l->err) != 0;
    return l->failed;
}

static int dead_list(struct cli *cli, struct error *err)
{
    struct letters l = {.cli = cli, .err = err};
    struct store *st = commands_store(cli, err);
    if (!st)
        return -1;
    int r = output_listing(cli, &l.listing, fields_dead_letter,
                           "consumer seq id~~ type key attempts dead_at retrying error~", err);
    if (r == 0)
        r = listing_end(&l.listing, visit_letters(st, &l, list_letter, err), err);

    bool none = r == 0 && l.listing.n == 0;
    if (none && !cli->args.json)
        fputs("no dead letters\n", stderr);
    return r;
}

static int show_letter(void *ctx, const struct dead_letter *d)
{
    struct letters *l = ctx;
    int r;
    if (l->cli->args.json) {
        r = output_result(l->cli, fields_dead_letter, d, NULL, l->err);
    } else {
        if (l->seen)
            putchar('\n');
        r = listing_pairs(stdout, fields_dead_letter, PAIRS_DEAD_LETTER, d, l->err);
    }
    l->seen++;
    l->failed = r != 0;
    return l->failed;
}

static int letter_not_found(const struct args *a, struct error *err)
{
    static const char hint[] = "`outbox dead list` lists them";
    if (a->dead.consumer)
        return err_set(err, ERR_NOTFOUND, "consumer \"%s\" has no dead letter \"%s\"; %s",
                       a->dead.consumer, a->pos[0], hint);
    return err_set(err, ERR_NOTFOUND, "there is no dead letter \"%s\"; %s", a->pos[0], hint);
}

/* Shows the letters of an event: one for each consumer that has buried it. */
static int dead_show(struct cli *cli, struct error *err)
{
    struct letters l = {.cli = cli, .err = err};
    struct store *st = commands_store(cli, err);
    if (!st)
        return -1;
    int r = visit_letters(st, &l, show_letter, err);
    if (r == 0 && l.seen == 0)
        return letter_not_found(&cli->args, err);
    return r;
}

/* ---- retry and drop ---- */

/* The action of `dead retry` or `dead drop` on a letter. */
struct action {
    const char *name; /* of the subcommand */
    const char *done; /* in a sentence: "3 dead letters dropped" */
    bool destroys;    /* asks first */
};

static const struct action action_retry = {"retry", "sent back for delivery", false};
static const struct action action_drop = {"drop", "dropped", true};

/* How many letters each consumer has. (1) failed: memory ran out, and the tally is incomplete. */
struct tally {
    struct share {
        char consumer[STORE_NAME_MAX + 1];
        int64_t n;
    } * share;
    size_t n;
    int64_t sum;
    bool failed;
};

static void tally_add(struct tally *t, const char *consumer, int64_t n)
{
    t->sum += n;
    for (size_t i = 0; i < t->n; i++) {
        if (strcmp(t->share[i].consumer, consumer) != 0)
            continue;
        t->share[i].n += n;
        return;
    }
    struct share *grown = array_grow(t->share, t->n, sizeof *grown);
    if (!grown) {
        t->failed = true;
        return;
    }
    t->share = grown;
    snprintf(grown[t->n].consumer, sizeof(grown[t->n].consumer), "%s", consumer);
    grown[t->n++].n = n;
}

static int count_letter(void *ctx, const struct dead_letter *d)
{
    struct tally *t = ctx;
    /* A letter that was sent back becomes a dead letter again only when its event has used up its
     * attempts. */
    if (!d->retrying)
        tally_add(t, d->consumer, 1);
    return t->failed;
}

static int count_letters(struct store *st, const struct dead_query *q, struct tally *ret,
                         struct error *err)
{
    if (st->ops->dead(st, q, count_letter, ret, err) != 0)
        return -1;
    if (ret->failed)
        return err_nomem(err);
    return 0;
}

/* Retries or drops the letters, one consumer after the other, to report the number of letters of
 * each. */
static int act_on_all(struct store *st, struct arena *a, const struct action *action,
                      struct dead_query q, struct tally *ret, struct error *err)
{
    const char *only = q.consumer;
    struct consumer_info *c;
    size_t n;
    if (st->ops->consumer_list(st, NULL, a, &c, &n, err) != 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        q.consumer = c[i].spec.name;
        if (only && strcmp(only, q.consumer) != 0)
            continue;

        int64_t done = 0;
        int r;
        if (action->destroys)
            r = st->ops->dead_drop(st, &q, &done, err);
        else
            r = st->ops->dead_retry(st, &q, &done, err);
        if (r != 0)
            return -1;
        if (done > 0)
            tally_add(ret, q.consumer, done);
    }
    if (ret->failed)
        return err_nomem(err);
    return 0;
}

/* ---- the result ---- */

static void add_shares(struct buf *b, const struct tally *t)
{
    for (size_t i = 0; i < t->n; i++) {
        if (i)
            buf_adds(b, ", ");
        output_addf(b, "%s %lld", t->share[i].consumer, (long long)t->share[i].n);
    }
}

/* The result of `dead retry` or `dead drop`, or with --dry-run the result it would have. */
struct outcome_of_action {
    const struct action *action;
    const struct tally *tally;
    bool dry_run;
};

static bool is_retry(const void *row)
{
    return ((const struct outcome_of_action *)row)->action == &action_retry;
}

static bool is_drop(const void *row)
{
    return !is_retry(row);
}

static bool action_sum(const void *row, struct listing_value *ret)
{
    ret->n = ((const struct outcome_of_action *)row)->tally->sum;
    return true;
}

static void action_consumers(struct buf *b, const void *row)
{
    const struct tally *t = ((const struct outcome_of_action *)row)->tally;
    buf_addc(b, '{');
    for (size_t i = 0; i < t->n; i++)
        member_int(b, t->share[i].consumer, t->share[i].n);
    buf_addc(b, '}');
}

static const struct listing_field fields_action[] = {
    {"retried", LISTING_INT, .get = action_sum, .only = is_retry,
     .help = "dead retry: letters sent back for delivery"},
    {"dropped", LISTING_INT, .get = action_sum, .only = is_drop,
     .help = "dead drop: letters deleted"},
    {"dry_run", LISTING_BOOL, .at = offsetof(struct outcome_of_action, dry_run),
     "true: nothing was done"},
    {"consumers", LISTING_OWN, .json = action_consumers, .kind = "object",
     .help = "number of these letters per consumer"},
    {NULL},
};

/* "3 dead letters dropped: mail 2, search 1" */
static void action_text(struct buf *b, const void *row)
{
    const struct outcome_of_action *o = row;
    char n[HUMAN_COUNT];
    buf_addf(b, "%s %s%s%s", human_count(o->tally->sum, "dead letter", n),
             o->dry_run ? "would be " : "", o->action->done, o->tally->n > 0 ? ": " : "");
    add_shares(b, o->tally);
    buf_addc(b, '\n');
}

static void tally_release(struct tally *t)
{
    free(t->share);
    *t = (struct tally){0};
}

/* Sets *ret to the letters retried or dropped or, with --dry-run, to those that would be. It counts
 * them in advance only to ask for confirmation. */
static int change_in(struct cli *cli, const struct action *action, struct tally *ret,
                     struct error *err)
{
    struct dead_query q = query_of(&cli->args);
    if (cli->args.dry_run)
        return count_letters(cli->st, &q, ret, err);

    bool asks = action->destroys && !cli->args.yes;
    if (asks) {
        if (count_letters(cli->st, &q, ret, err) != 0)
            return -1;
        if (ret->sum > 0) {
            char n[HUMAN_COUNT];
            struct buf b;
            buf_init(&b, 65536);
            add_shares(&b, ret);
            int r = output_confirm(cli, err, "delete %s%s: %.400s",
                                   human_count(ret->sum, "dead letter", n),
                                   ret->n > 1 ? " of several consumers" : "", buf_cstr(&b));
            buf_release(&b);
            if (r != 0)
                return -1;
        }
        tally_release(ret);
    }
    return act_on_all(cli->st, &cli->arena, action, q, ret, err);
}

/* `dead retry` and `dead drop`. */
static int change_letters(struct cli *cli, const struct action *action, struct error *err)
{
    const struct args *a = &cli->args;
    bool by_id = a->n_pos > 0;
    if (!a->dead.all && !by_id)
        return options_usage(err, "dead %s needs an ID, or --all", action->name);
    if (a->dead.all && by_id)
        return options_usage(err, "dead %s takes an ID or --all, not both", action->name);

    struct tally t = {0};
    if (!commands_store(cli, err))
        return -1;
    int r = change_in(cli, action, &t, err);

    struct outcome_of_action done = {action, &t, a->dry_run};
    bool missing = r == 0 && by_id && t.sum == 0;
    if (missing)
        r = letter_not_found(a, err);
    else if (r == 0)
        r = output_result(cli, fields_action, &done, action_text, err);
    tally_release(&t);
    return r;
}

static int dead_retry(struct cli *cli, struct error *err)
{
    return change_letters(cli, &action_retry, err);
}

static int dead_drop(struct cli *cli, struct error *err)
{
    return change_letters(cli, &action_drop, err);
}

const struct command cmd_dead[] = {
    {"dead", "list", NULL, "list dead letters", .options = list_options,
     .json = JSON_ARRAY(fields_dead_letter), .run = dead_list},
    {"dead", "show", "ID", "show a dead letter, by event id or sequence number",
     .options = show_options, .min = 1, .max = 1, .json = JSON_LINES(fields_dead_letter),
     .run = dead_show},
    {"dead", "retry", "ID | --all", "retry dead letters, with a fresh set of attempts",
     .options = retry_options, .max = 1, .json = JSON_OBJECT(fields_action), .run = dead_retry},
    {"dead", "drop", "ID | --all", "delete dead letters", .options = drop_options, .max = 1,
     .json = JSON_OBJECT(fields_action), .run = dead_drop},
    {NULL},
};
