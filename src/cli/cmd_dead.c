/* cmd_dead.c: outbox dead, which lists dead letters, retries and drops them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Dead letters on their way out. (1) If failed, a visit has filled in err. */
struct listing {
    struct libscols_table *tb; /* of list_table */
    struct buf b;
    int64_t seen;
    bool as_list; /* a JSON array, not an object a line */
    bool failed;
    struct error *err;
};

/* query_of selects what the arguments ask for. */
static struct dead_query query_of(const struct args *a)
{
    return (struct dead_query){
        .consumer = a->dead.consumer,
        .id = a->pos[0], /* NULL: all */
        .type = a->dead.type,
        .limit = (size_t)a->dead.limit,
    };
}

static int visit_row(void *ctx, const struct dead_letter *d)
{
    struct listing *l = ctx;
    char seq[OUTPUT_INT], attempts[OUTPUT_INT], at[CLOCK_RFC3339_SIZE];
    struct buf key;
    buf_init(&key, OUTPUT_MAX);
    output_key(&key, &d->ev);
    const char *cells[] = {d->consumer,
                           output_int(d->ev.seq, seq),
                           d->ev.id.p,
                           d->ev.type.p,
                           buf_cstr(&key),
                           output_int(d->attempts, attempts),
                           output_time(d->dead_at, at),
                           d->retrying ? "yes" : "no",
                           d->error};
    int r;
    if (key.failed)
        r = err_nomem(l->err);
    else
        r = output_row(l->tb, cells, l->err);
    l->failed = r != 0;
    l->seen++;
    buf_release(&key);
    return l->failed;
}

static int visit_json(void *ctx, const struct dead_letter *d)
{
    struct listing *l = ctx;
    if (l->as_list)
        buf_adds(&l->b, l->seen ? ",\n" : "\n");
    buf_addc(&l->b, '{');
    output_string(&l->b, "consumer", d->consumer);
    output_event(&l->b, &d->ev);
    output_number(&l->b, "attempts", d->attempts);
    output_string(&l->b, "error", d->error);
    output_stamp(&l->b, "dead_at", d->dead_at);
    output_bool(&l->b, "retrying", d->retrying);
    buf_adds(&l->b, l->as_list ? "}" : "}\n");
    l->failed = output_flush(&l->b, l->err) != 0;
    l->seen++;
    return l->failed;
}

/* add_pairs adds the failure first, then the event. */
static int add_pairs(struct libscols_table *tb, const struct dead_letter *d, struct error *err)
{
    char attempts[OUTPUT_INT], at[CLOCK_RFC3339_SIZE];
    const char *const pairs[][2] = {
        {"consumer", d->consumer},
        {"attempts", output_int(d->attempts, attempts)},
        {"died", output_time(d->dead_at, at)},
        {"error", d->error},
        {"retrying", d->retrying ? "yes" : "no"},
    };
    for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++) {
        if (output_pair(tb, pairs[i][0], pairs[i][1], err) != 0)
            return -1;
    }
    return output_event_pairs(tb, &d->ev, err);
}

static int print_pairs(const struct dead_letter *d, struct error *err)
{
    struct libscols_table *tb;
    if (output_pairs(&tb, err) != 0)
        return -1;
    if (add_pairs(tb, d, err) != 0) {
        output_discard(tb);
        return -1;
    }
    return output_print(tb, err);
}

static int visit_pairs(void *ctx, const struct dead_letter *d)
{
    struct listing *l = ctx;
    if (l->seen++)
        putchar('\n');
    l->failed = print_pairs(d, l->err) != 0;
    return l->failed;
}

/* visit_all visits the dead letters that the arguments ask for. */
static int visit_all(struct store *st, const struct args *a, dead_visit *visit, struct listing *l,
                     struct error *err)
{
    struct dead_query q = query_of(a);
    if (st->ops->dead(st, &q, visit, l, err) != 0)
        return -1;
    if (l->failed)
        return -1;
    return 0;
}

static int list_json(const struct cli *cli, struct store *st, struct listing *l, struct error *err)
{
    buf_init(&l->b, OUTPUT_MAX);
    buf_addc(&l->b, '[');
    int r = visit_all(st, &cli->args, visit_json, l, err);
    if (l->seen)
        buf_addc(&l->b, '\n');
    buf_adds(&l->b, "]\n");
    if (r == 0)
        r = output_flush(&l->b, err);
    buf_release(&l->b);
    return r;
}

static int list_table(const struct cli *cli, struct store *st, struct listing *l, struct error *err)
{
    static const struct output_column columns[] = {
        {"CONSUMER", false, false}, {"SEQ", true, false},       {"ID", false, false},
        {"TYPE", false, true},      {"KEY", false, true},       {"ATTEMPTS", true, false},
        {"DIED", false, false},     {"RETRYING", false, false}, {"ERROR", false, true},
        {NULL, false, false},
    };
    if (output_table(columns, true, output_color(&cli->settings), &l->tb, err) != 0)
        return -1;
    if (visit_all(st, &cli->args, visit_row, l, err) != 0) {
        output_discard(l->tb);
        return -1;
    }
    if (l->seen == 0)
        fputs("no dead letters\n", stderr);
    return output_print(l->tb, err);
}

static int list(struct cli *cli, struct error *err)
{
    struct listing l = {.as_list = cli->args.json, .err = err};
    struct store *st;
    if (commands_store(cli, &st, err) != 0)
        return -1;

    int r;
    if (cli->args.json)
        r = list_json(cli, st, &l, err);
    else
        r = list_table(cli, st, &l, err);
    store_close(st);
    return r;
}

static int not_found(const struct args *a, struct error *err)
{
    static const char hint[] = "`outbox dead list` lists them";
    if (a->dead.consumer)
        return err_set(err, ERR_NOTFOUND, "consumer \"%s\" has no dead letter \"%s\"; %s",
                       a->dead.consumer, a->pos[0], hint);
    return err_set(err, ERR_NOTFOUND, "there is no dead letter \"%s\"; %s", a->pos[0], hint);
}

/* show shows the letters of an event: one for each consumer that has buried it. */
static int show(struct cli *cli, struct error *err)
{
    struct listing l = {.err = err};
    struct store *st;
    if (commands_store(cli, &st, err) != 0)
        return -1;

    buf_init(&l.b, OUTPUT_MAX);
    dead_visit *visit = visit_pairs;
    if (cli->args.json)
        visit = visit_json;
    int r = visit_all(st, &cli->args, visit, &l, err);
    buf_release(&l.b);
    store_close(st);
    if (r == 0 && l.seen == 0)
        return not_found(&cli->args, err);
    return r;
}

/* ---- retry and drop ---- */

/* What `dead retry` and `dead drop` do to a letter. */
struct action {
    const char *name;   /* of the subcommand */
    const char *done;   /* in a sentence: "3 dead letters dropped" */
    const char *member; /* of the JSON object */
    bool destroys;      /* asks first */
};

static const struct action action_retry = {"retry", "sent back for delivery", "retried", false};
static const struct action action_drop = {"drop", "dropped", "dropped", true};

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

/* tally_add adds n letters to the share of a consumer. */
static void tally_add(struct tally *t, const char *consumer, int64_t n)
{
    t->sum += n;
    for (size_t i = 0; i < t->n; i++) {
        if (strcmp(t->share[i].consumer, consumer) != 0)
            continue;
        t->share[i].n += n;
        return;
    }
    struct share *grown = realloc(t->share, (t->n + 1) * sizeof(*grown));
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
    /* A letter that was sent back is not a dead letter again until its event fails for good. */
    if (!d->retrying)
        tally_add(t, d->consumer, 1);
    return t->failed;
}

/* count finds out what there is to retry or drop. */
static int count(struct store *st, const struct args *a, struct tally *ret, struct error *err)
{
    struct dead_query q = query_of(a);
    if (st->ops->dead(st, &q, count_letter, ret, err) != 0)
        return -1;
    if (ret->failed)
        return err_nomem(err);
    return 0;
}

/* act_on retries or drops the letters of one consumer. */
static int act_on(struct store *st, const struct action *action, const struct dead_query *q,
                  struct tally *t, struct error *err)
{
    int64_t done = 0;
    int r;
    if (action->destroys)
        r = st->ops->dead_drop(st, q, &done, err);
    else
        r = st->ops->dead_retry(st, q, &done, err);
    if (r == 0 && done > 0)
        tally_add(t, q->consumer, done);
    return r;
}

/* act goes through the consumers one by one, to report how many letters each of them had. */
static int act(struct store *st, const struct args *a, const struct action *action,
               struct tally *ret, struct error *err)
{
    struct dead_query q = query_of(a);
    const char *only = q.consumer;
    struct consumer_info *c;
    struct arena arena;
    size_t n;
    arena_init(&arena, 0);
    int r = st->ops->consumer_list(st, NULL, &arena, &c, &n, err);
    for (size_t i = 0; r == 0 && i < n; i++) {
        q.consumer = c[i].spec.name;
        bool wanted = !only || strcmp(only, q.consumer) == 0;
        if (wanted)
            r = act_on(st, action, &q, ret, err);
    }
    arena_release(&arena);

    if (r == 0 && ret->failed)
        return err_nomem(err);
    return r;
}

/* ---- what is said ---- */

static void add_shares(struct buf *b, const struct tally *t)
{
    for (size_t i = 0; i < t->n; i++) {
        if (i)
            buf_adds(b, ", ");
        output_addf(b, "%s %lld", t->share[i].consumer, (long long)t->share[i].n);
    }
}

static void add_json(struct buf *b, const struct args *a, const struct action *action,
                     const struct tally *t)
{
    buf_addc(b, '{');
    output_number(b, action->member, t->sum);
    output_bool(b, "dry_run", a->dry_run);
    output_member(b, "consumers");
    buf_addc(b, '{');
    for (size_t i = 0; i < t->n; i++)
        output_number(b, t->share[i].consumer, t->share[i].n);
    buf_adds(b, "}}\n");
}

/* add_text says how many letters, and whose: "3 dead letters dropped: mail 2, search 1". */
static void add_text(struct buf *b, const struct args *a, const struct action *action,
                     const struct tally *t)
{
    char n[OUTPUT_COUNT];
    buf_addf(b, "%s ", output_count(t->sum, "dead letter", n));
    if (a->dry_run)
        buf_adds(b, "would be ");
    buf_adds(b, action->done);
    if (t->n > 0)
        buf_adds(b, ": ");
    add_shares(b, t);
    buf_addc(b, '\n');
}

static int report(const struct args *a, const struct action *action, const struct tally *t,
                  struct error *err)
{
    struct buf b;
    buf_init(&b, OUTPUT_MAX);
    if (a->json)
        add_json(&b, a, action, t);
    else
        add_text(&b, a, action, t);

    int r = output_flush(&b, err);
    buf_release(&b);
    return r;
}

/* ask_first says whose letters would be deleted. Nothing to delete is not worth a question. */
static int ask_first(const struct cli *cli, const struct tally *t, struct error *err)
{
    if (t->sum == 0)
        return 0;

    char n[OUTPUT_COUNT];
    struct buf b;
    buf_init(&b, 65536);
    add_shares(&b, t);
    int r = confirm(cli, err, "delete %s%s: %.400s", output_count(t->sum, "dead letter", n),
                    t->n > 1 ? " of several consumers" : "", buf_cstr(&b));
    buf_release(&b);
    return r;
}

static void tally_release(struct tally *t)
{
    free(t->share);
    *t = (struct tally){0};
}

/* change_in sets *ret to what was done, or with --dry-run would be. It counts first only if it has
 * to ask. */
static int change_in(struct cli *cli, struct store *st, const struct action *action,
                     struct tally *ret, struct error *err)
{
    const struct args *a = &cli->args;
    if (a->dry_run)
        return count(st, a, ret, err);

    bool asks = action->destroys && !a->yes;
    if (asks) {
        if (count(st, a, ret, err) != 0)
            return -1;
        if (ask_first(cli, ret, err) != 0)
            return -1;
        tally_release(ret);
    }
    return act(st, a, action, ret, err);
}

/* change is `dead retry` and `dead drop`. */
static int change(struct cli *cli, const struct action *action, struct error *err)
{
    const struct args *a = &cli->args;
    bool by_id = a->n_pos > 0;
    if (!a->dead.all && !by_id)
        return options_usage(err, "dead %s needs an ID, or --all", action->name);
    if (a->dead.all && by_id)
        return options_usage(err, "dead %s takes an ID or --all, not both", action->name);

    struct tally t = {0};
    struct store *st;
    if (commands_store(cli, &st, err) != 0)
        return -1;
    int r = change_in(cli, st, action, &t, err);
    store_close(st);

    bool missing = r == 0 && by_id && t.sum == 0;
    if (missing)
        r = not_found(a, err);
    else if (r == 0)
        r = report(a, action, &t, err);
    tally_release(&t);
    return r;
}

static int retry(struct cli *cli, struct error *err)
{
    return change(cli, &action_retry, err);
}

static int drop(struct cli *cli, struct error *err)
{
    return change(cli, &action_drop, err);
}

const struct command cmd_dead[] = {
    {.name = "dead",
     .sub = "list",
     .help = "list dead letters",
     .options = list_options,
     .run = list},
    {.name = "dead",
     .sub = "show",
     .args = "ID",
     .help = "show a dead letter, by event id or sequence number",
     .options = show_options,
     .min = 1,
     .max = 1,
     .run = show},
    {.name = "dead",
     .sub = "retry",
     .args = "ID | --all",
     .help = "retry dead letters, with a fresh set of attempts",
     .options = retry_options,
     .max = 1,
     .run = retry},
    {.name = "dead",
     .sub = "drop",
     .args = "ID | --all",
     .help = "delete dead letters",
     .options = drop_options,
     .max = 1,
     .run = drop},
    {.name = NULL},
};
