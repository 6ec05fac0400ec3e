#include <string.h>

#include "base/text.h"
#include "cli/cli.h"

static const char *const shapes[] = {"auto", "processed_at", "debezium", NULL};
static const char *const existing[] = {"copy", "skip", NULL};

static int set_column(void *field, const char *value, const struct option_def *o, struct error *err)
{
    struct adopt_args *a = field;
    (void)o;
    const char *equals = strchr(value, '=');
    if (!equals || equals == value)
        return err_set(err, ERR_CONFIG, "\"%s\" is not FIELD=COLUMN", value);
    size_t n = (size_t)(equals - value) + 1;
    for (size_t i = 0; i < a->n_columns; i++)
        if (strncmp(a->columns[i], value, n) == 0)
            return err_set(err, ERR_CONFIG, "%.*s is given twice", (int)n - 1, value);
    if (a->n_columns == COLUMNS_MAX)
        return err_set(err, ERR_CONFIG, "there are not so many to give");
    a->columns[a->n_columns++] = value;
    return 0;
}

static const struct option_def options[] = {
    {"shape", "NAME", NULL,
     "layout of the table: processed_at, debezium, or auto to find out (the default)", option_word,
     ARG(adopt.shape), .names = shapes},
    {"column", "FIELD=COLUMN", NULL,
     "which column holds a field, if its name is unusual; the fields are id, type, aggregate_type, "
     "aggregate_id, payload, "
     "created_at, processed_at and tenant; FIELD= if there is none; FIELD='TEXT' for a constant "
     "type, aggregate_type or "
     "tenant; may be repeated",
     set_column, ARG(adopt)},
    {"existing", "WHAT", NULL,
     "rows that are not processed yet: copy them (the default), or skip them", option_word,
     ARG(adopt.existing), .names = existing},
    {"mark", "COLUMN", NULL,
     "set this column (processed_at) once --consumer has received a row, so that the old system "
     "leaves it alone; a "
     "timestamp or a boolean",
     option_name, ARG(adopt.mark)},
    {"consumer", "NAME", NULL, "with --mark: the consumer whose deliveries count",
     options_consumer_name, ARG(adopt.consumer)},
    {"drop-mark", NULL, "no", "stop marking rows; new rows still become events", option_bool,
     ARG(adopt.drop_mark)},
    {"undo", NULL, "no", "stop turning rows into events; existing events stay", option_bool,
     ARG(adopt.undo)},
    OPTION_YES,
    OPTION_DRY_RUN,
    OPTION_JSON,
    OPTION_END,
};

static void say_mark(struct buf *b, const struct args *a)
{
    const char *next = a->dry_run ? "would be" : "are";
    buf_addf(b, "%s: its rows %s marked in %s once consumer \"%s\" has had them\n", a->pos[0], next,
             a->adopt.mark, a->adopt.consumer);
}

static void say_dry_run(struct buf *b, const struct args *args, const struct adopt_result *res)
{
    const struct adopt_args *a = &args->adopt;
    const char *table = args->pos[0];
    long long n = (long long)res->copied;
    if (a->undo && res->changed)
        buf_addf(b, "%s: would be adopted no longer; its events stay\n", table);
    else if (a->undo)
        buf_addf(b, "%s: is not adopted; nothing would be done\n", table);
    if (a->undo)
        return;
    if (a->drop_mark) {
        buf_addf(b, "%s: %s\n", table,
                 res->changed ? "its rows would be marked no longer" : "its rows are not marked");
        return;
    }
    if (!res->changed)
        buf_addf(b, "%s: is adopted, with these columns; nothing would be done\n", table);
    else if (res->other_columns)
        buf_addf(b, "%s: is adopted; its next rows would be read with these columns\n", table);
    else if (n == 1)
        buf_addf(b, "%s: would be adopted, and 1 row that is not processed made an event\n", table);
    else
        buf_addf(b, "%s: would be adopted, and %lld rows that are not processed made events\n",
                 table, n);
    if (a->mark && res->changed)
        say_mark(b, args);
    buf_addf(b, "columns: %s\n", res->mapping);
}

static void say(struct buf *b, const struct args *args, const struct adopt_result *res)
{
    const struct adopt_args *a = &args->adopt;
    const char *table = args->pos[0];
    long long n = (long long)res->copied;
    if (args->dry_run)
        say_dry_run(b, args, res);
    else if (a->drop_mark)
        buf_addf(b, "%s: %s\n", table,
                 res->changed ? "its rows are marked no longer"
                              : "its rows were not marked; nothing to do");
    else if (a->undo && res->changed)
        buf_addf(b, "%s: no longer adopted; its events stay\n", table);
    else if (a->undo)
        buf_addf(b, "%s: was not adopted; nothing to do\n", table);
    else if (res->other_columns)
        buf_addf(
            b,
            "%s: was adopted before; its next rows are read with these columns, its events stay\n",
            table);
    else if (res->changed && n == 1)
        buf_addf(b, "%s: adopted; 1 row that was not processed became an event\n", table);
    else if (res->changed)
        buf_addf(b, "%s: adopted; %lld rows that were not processed became events\n", table, n);
    else
        buf_addf(b, "%s: was adopted before; nothing to do\n", table);
    if (a->mark && res->changed)
        say_mark(b, args);
}

static int report(const struct cli *cli, const struct adopt_result *res, struct error *err)
{
    const struct args *args = &cli->args;
    const struct adopt_args *a = &args->adopt;
    struct buf b;
    buf_init(&b, 8192);
    if (args->json) {
        buf_addc(&b, '{');
        output_string(&b, "table", args->pos[0]);
        output_bool(&b, "adopted", !a->undo);
        output_bool(&b, "changed", res->changed);
        output_number(&b, "copied", res->copied);
        if (a->mark)
            output_string(&b, "mark", a->mark);
        if (a->mark)
            output_string(&b, "consumer", a->consumer);
        if (args->dry_run) {
            output_bool(&b, "dry_run", true);
        }
        if (args->dry_run && !a->undo) {
            output_member(&b, "columns");
            buf_adds(&b, res->mapping);
        }
        buf_adds(&b, "}\n");
    } else
        say(&b, args, res);
    int r = output_flush(&b, err);
    buf_release(&b);
    return r;
}

static int check(const struct adopt_args *a, struct error *err)
{
    bool describes = a->shape || a->existing || a->n_columns;
    bool marks = a->mark || a->drop_mark;
    if (a->undo && (describes || marks))
        return options_usage(
            err, "--undo takes no --shape, --column, --existing, --mark or --drop-mark");
    if (a->drop_mark && (a->mark || a->existing))
        return options_usage(err, "--drop-mark takes no --mark or --existing");
    if (a->mark && !a->consumer)
        return options_usage(
            err, "--mark: whose delivery counts? Say --consumer NAME, the one that takes over");
    if (a->consumer && !a->mark)
        return options_usage(err, "--consumer is for --mark");
    return 0;
}

static int run(struct cli *cli, struct error *err)
{
    const struct args *args = &cli->args;
    const struct adopt_args *a = &args->adopt;
    struct adopt_request req = {.table = args->pos[0],
                                .shape = a->shape ? a->shape : shapes[0],
                                .existing = a->existing,
                                .columns = a->columns,
                                .n_columns = a->n_columns,
                                .mark = a->mark,
                                .consumer = a->consumer,
                                .drop_mark = a->drop_mark,
                                .undo = a->undo,
                                .dry_run = args->dry_run};
    struct adopt_result res = {0};
    struct store *st;
    if (check(a, err) != 0)
        return -1;
    if (a->undo && !args->dry_run &&
        confirm(cli, err, "stop making events of the rows of %.200s", args->pos[0]) != 0)
        return -1;
    if (commands_store(cli, &st, err) != 0)
        return -1;
    int r = st->ops->adopt
                ? st->ops->adopt(st, &req, &res, err)
                : err_set(err, ERR_CONFIG, "adopting a table is for PostgreSQL; a %s: store cannot",
                          st->ops->scheme);
    store_close(st);
    return r == 0 ? report(cli, &res, err) : -1;
}

const struct command cmd_adopt[] = {
    {.name = "adopt",
     .args = "TABLE",
     .help = "turn the rows of an existing outbox table into events",
     .options = options,
     .min = 1,
     .max = 1,
     .run = run},
    {.name = NULL},
};
