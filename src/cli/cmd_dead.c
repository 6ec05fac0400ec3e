#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

/* clang-format off */
#define OPTION_CONSUMER {"consumer", "NAME", NULL, "only dead letters of this consumer", options_consumer_name, ARG(dead.consumer)}
#define OPTION_TYPE {"type", "PATTERN", NULL, "only event types that match; * matches anything", option_text, ARG(dead.type)}
#define OPTION_ALL {"all", NULL, "no", "all dead letters, or all that match --consumer and --type", option_bool, ARG(dead.all)}
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

/* (1) failed: err has been filled in by a visit. */
struct listing {
    struct libscols_table *tb; /* NULL: none */
    struct buf b;
    int64_t seen;
    bool as_list, failed;
    struct error *err;
};

static struct dead_query query_of(const struct args *a)
{
    return (struct dead_query){
        .consumer = a->dead.consumer,
        .id = a->n_pos ? a->pos[0] : NULL,
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
    l->failed = (key.failed ? err_nomem(l->err) : output_row(l->tb, cells, l->err)) != 0;
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

static int visit_pairs(void *ctx, const struct dead_letter *d)
{
    struct listing *l = ctx;
    struct libscols_table *tb;
    if (l->seen++)
        putchar('\n');
    l->failed = output_pairs(&tb, l->err) != 0;
    if (l->failed)
        return 1;
    l->failed = add_pairs(tb, d, l->err) != 0;
    if (l->failed) {
        output_discard(tb);
        return 1;
    }
    l->failed = output_print(tb, l->err) != 0;
    return l->failed;
}

static int visit_all(struct store *st, const struct args *a, dead_visit *visit, struct listing *l,
                     struct error *err)
{
    struct dead_query q = query_of(a);
    if (l->as_list)
        buf_addc(&l->b, '[');
    if (st->ops->dead(st, &q, visit, l, err) != 0 || l->failed)
        return -1;
    if (l->as_list)
        buf_adds(&l->b, l->seen ? "\n]\n" : "]\n");
    return output_flush(&l->b, err);
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
    buf_init(&l.b, OUTPUT_MAX);
    int r = cli->args.json ? visit_all(st, &cli->args, visit_json, &l, err)
                           : list_table(cli, st, &l, err);
    buf_release(&l.b);
    store_close(st);
    return r;
}

static int not_found(const struct args *a, struct error *err)
{
    return err_set(err, ERR_NOTFOUND,
                   "there is no dead letter \"%s\"%s%s; outbox dead list shows those there are",
                   a->pos[0], a->dead.consumer ? " of consumer " : "",
                   a->dead.consumer ? a->dead.consumer : "");
}

static int show(struct cli *cli, struct error *err)
{
    struct listing l = {.err = err};
    struct store *st;
    if (commands_store(cli, &st, err) != 0)
        return -1;
    buf_init(&l.b, OUTPUT_MAX);
    int r = visit_all(st, &cli->args, cli->args.json ? visit_json : visit_pairs, &l, err);
    buf_release(&l.b);
    store_close(st);
    return r == 0 && l.seen == 0 ? not_found(&cli->args, err) : r;
}

/* ---- retry and drop ---- */

/* How many letters of each consumer. */
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
    /* one that was sent back is no dead letter until it dies again */
    if (!d->retrying)
        tally_add(t, d->consumer, 1);
    return t->failed;
}

/* count says what is there to be retried or dropped. */
static int count(struct store *st, const struct args *a, struct tally *ret, struct error *err)
{
    struct dead_query q = query_of(a);
    if (st->ops->dead(st, &q, count_letter, ret, err) != 0)
        return -1;
    return ret->failed ? err_nomem(err) : 0;
}

/* act goes from consumer to consumer, so that it can be told how many of each it were. */
static int act(struct store *st, const struct args *a, bool drop, struct tally *ret,
               struct error *err)
{
    struct dead_query q = query_of(a);
    struct consumer_info *c;
    struct arena arena;
    size_t n;
    arena_init(&arena, 0);
    int r = st->ops->consumer_list(st, NULL, &arena, &c, &n, err);
    for (size_t i = 0; r == 0 && i < n; i++) {
        int64_t done = 0;
        if (a->dead.consumer && strcmp(a->dead.consumer, c[i].spec.name) != 0)
            continue;
        q.consumer = c[i].spec.name;
        r = drop ? st->ops->dead_drop(st, &q, &done, err) : st->ops->dead_retry(st, &q, &done, err);
        if (r == 0 && done > 0)
            tally_add(ret, q.consumer, done);
    }
    arena_release(&arena);
    if (r == 0 && ret->failed)
        return err_nomem(err);
    return r;
}

static void add_shares(struct buf *b, const struct tally *t)
{
    for (size_t i = 0; i < t->n; i++)
        buf_addf(b, "%s%s %lld", i ? ", " : "", t->share[i].consumer, (long long)t->share[i].n);
}

static int report(const struct args *a, bool drop, const struct tally *t, struct error *err)
{
    struct buf b;
    const char *did = drop ? "dropped" : "sent back for delivery";
    buf_init(&b, OUTPUT_MAX);
    if (a->json) {
        buf_addc(&b, '{');
        output_number(&b, drop ? "dropped" : "retried", t->sum);
        output_bool(&b, "dry_run", a->dry_run);
        output_member(&b, "consumers");
        buf_addc(&b, '{');
        for (size_t i = 0; i < t->n; i++)
            output_number(&b, t->share[i].consumer, t->share[i].n);
        buf_adds(&b, "}}\n");
    } else {
        buf_addf(&b, "%lld dead letter%s %s%s%s", (long long)t->sum, t->sum == 1 ? "" : "s",
                 a->dry_run ? "would be " : "", did, t->n ? ": " : "");
        add_shares(&b, t);
        buf_addc(&b, '\n');
    }
    int r = output_flush(&b, err);
    buf_release(&b);
    return r;
}

/* ask_first says whose letters would go. */
static int ask_first(const struct cli *cli, const struct tally *t, struct error *err)
{
    struct buf b;
    if (t->sum == 0)
        return 0;
    buf_init(&b, 65536);
    add_shares(&b, t);
    int r = confirm(cli, err, "delete %lld dead letter%s%s: %.400s", (long long)t->sum,
                    t->sum == 1 ? "" : "s", t->n > 1 ? " of several consumers" : "", buf_cstr(&b));
    buf_release(&b);
    return r;
}

static int change_in(struct cli *cli, struct store *st, bool drop, struct tally *ret,
                     struct error *err)
{
    const struct args *a = &cli->args;
    bool look = a->dry_run || (drop && !a->yes);
    if (look && count(st, a, ret, err) != 0)
        return -1;
    if (a->dry_run)
        return 0;
    if (look && ask_first(cli, ret, err) != 0)
        return -1;
    free(ret->share);
    *ret = (struct tally){0};
    return act(st, a, drop, ret, err);
}

static int change(struct cli *cli, bool drop, struct error *err)
{
    const struct args *a = &cli->args;
    struct tally t = {0};
    struct store *st;
    if (!a->dead.all && !a->n_pos)
        return options_usage(err, "dead %s needs an ID, or --all", drop ? "drop" : "retry");
    if (a->dead.all && a->n_pos)
        return options_usage(err, "an ID and --all are one too many");
    if (commands_store(cli, &st, err) != 0)
        return -1;
    int r = change_in(cli, st, drop, &t, err);
    store_close(st);
    if (r == 0)
        r = t.sum == 0 && a->n_pos ? not_found(a, err) : report(a, drop, &t, err);
    free(t.share);
    return r;
}

static int retry(struct cli *cli, struct error *err)
{
    return change(cli, false, err);
}

static int drop(struct cli *cli, struct error *err)
{
    return change(cli, true, err);
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
     .help = "deliver dead letters again, with a fresh set of attempts",
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
