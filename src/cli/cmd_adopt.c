#include <string.h>

#include "base/text.h"
#include "cli/cli.h"

static const char *const shapes[] = {"auto", "processed_at", "debezium", NULL};
static const char *const existing[] = {"copy", "skip", NULL};

static int set_shape(void *target, const char *value, struct error *err)
{
    int i;
    if (options_choice(value, shapes, &i, err) != 0) return -1;
    ((struct args *)target)->shape = shapes[i];
    return 0;
}

static int set_existing(void *target, const char *value, struct error *err)
{
    int i;
    if (options_choice(value, existing, &i, err) != 0) return -1;
    ((struct args *)target)->existing = existing[i];
    return 0;
}

static int set_column(void *target, const char *value, struct error *err)
{
    struct args *a = target;
    const char *equals = strchr(value, '=');
    if (!equals || equals == value) return err_set(err, ERR_CONFIG, "\"%s\" is not FIELD=COLUMN", value);
    size_t n = (size_t)(equals - value) + 1;
    for (size_t i = 0; i < a->n_columns; i++)
        if (strncmp(a->columns[i], value, n) == 0)
            return err_set(err, ERR_CONFIG, "%.*s is given twice", (int)n - 1, value);
    if (a->n_columns == COLUMNS_MAX) return err_set(err, ERR_CONFIG, "there are not so many to give");
    a->columns[a->n_columns++] = value;
    return 0;
}

static int set_undo(void *target, const char *value, struct error *err)
{
    return text_bool(value, &((struct args *)target)->undo, err);
}

static int set_mark(void *target, const char *value, struct error *err)
{
    if (!*value) return err_set(err, ERR_CONFIG, "the column's name is empty");
    ((struct args *)target)->mark = value;
    return 0;
}

static int set_drop_mark(void *target, const char *value, struct error *err)
{
    return text_bool(value, &((struct args *)target)->drop_mark, err);
}

static int set_dry_run(void *target, const char *value, struct error *err)
{
    return text_bool(value, &((struct args *)target)->dry_run, err);
}

static const struct cli_option options[] = {
    {{"shape", "NAME", "auto", "what the table looks like: auto, processed_at, debezium", set_shape}, 0, false},
    {{"column", "FIELD=COLUMN", NULL,
      "what a column is, where it is not called as usual: id, type, aggregate_type, aggregate_id, payload, created_at, "
      "processed_at or tenant; nothing behind = for none; 'TEXT' in single quotes, the same for every row, for type, "
      "aggregate_type or tenant; may be repeated",
      set_column},
     0,
     false},
    {{"existing", "WHAT", "copy", "rows there are that were not processed: copy them, or skip them", set_existing},
     0,
     false},
    {{"mark", "COLUMN", NULL,
      "set this column (processed_at) of a row once --consumer has had it, so that what delivered before does not; it may be a "
      "time or a truth value",
      set_mark},
     0,
     false},
    {{"consumer", "NAME", NULL, "with --mark: the consumer whose delivery counts", options_set_consumer}, 0, false},
    {{"drop-mark", NULL, "no", "mark its rows no longer; new ones still become events", set_drop_mark}, 0, false},
    {{"undo", NULL, "no", "make no more events of its rows; those there are stay", set_undo}, 0, false},
    OPTION_YES,
    {{"dry-run", NULL, "no", "say what would be done, and do nothing", set_dry_run}, 0, false},
    OPTION_JSON,
    OPTION_END,
};

static void say_mark(struct buf *b, const struct args *a)
{
    const char *next = a->dry_run ? "would be" : "are";
    buf_addf(b, "%s: its rows %s marked in %s once consumer \"%s\" has had them\n", a->pos[0], next, a->mark,
             a->consumer);
}

static void say_dry_run(struct buf *b, const struct args *a, const struct adopt_result *res)
{
    const char *table = a->pos[0];
    long long n = (long long)res->copied;
    if (a->undo && res->changed) buf_addf(b, "%s: would be adopted no longer; its events stay\n", table);
    else if (a->undo) buf_addf(b, "%s: is not adopted; nothing would be done\n", table);
    if (a->undo) return;
    if (a->drop_mark) {
        buf_addf(b, "%s: %s\n", table, res->changed ? "its rows would be marked no longer" : "its rows are not marked");
        return;
    }
    if (!res->changed) buf_addf(b, "%s: is adopted, with these columns; nothing would be done\n", table);
    else if (res->other_columns) buf_addf(b, "%s: is adopted; its next rows would be read with these columns\n", table);
    else if (n == 1) buf_addf(b, "%s: would be adopted, and 1 row that is not processed made an event\n", table);
    else buf_addf(b, "%s: would be adopted, and %lld rows that are not processed made events\n", table, n);
    if (a->mark && res->changed) say_mark(b, a);
    buf_addf(b, "columns: %s\n", res->mapping);
}

static void say(struct buf *b, const struct args *a, const struct adopt_result *res)
{
    const char *table = a->pos[0];
    long long n = (long long)res->copied;
    if (a->dry_run) say_dry_run(b, a, res);
    else if (a->drop_mark)
        buf_addf(b, "%s: %s\n", table,
                 res->changed ? "its rows are marked no longer" : "its rows were not marked; nothing to do");
    else if (a->undo && res->changed) buf_addf(b, "%s: no longer adopted; its events stay\n", table);
    else if (a->undo) buf_addf(b, "%s: was not adopted; nothing to do\n", table);
    else if (res->other_columns)
        buf_addf(b, "%s: was adopted before; its next rows are read with these columns, its events stay\n", table);
    else if (res->changed && n == 1) buf_addf(b, "%s: adopted; 1 row that was not processed became an event\n", table);
    else if (res->changed) buf_addf(b, "%s: adopted; %lld rows that were not processed became events\n", table, n);
    else buf_addf(b, "%s: was adopted before; nothing to do\n", table);
    if (a->mark && res->changed) say_mark(b, a);
}

static int report(const struct cli *cli, const struct adopt_result *res, struct error *err)
{
    const struct args *a = &cli->args;
    struct buf b;
    buf_init(&b, 8192);
    if (a->json) {
        buf_addc(&b, '{');
        output_string(&b, "table", a->pos[0]);
        output_bool(&b, "adopted", !a->undo);
        output_bool(&b, "changed", res->changed);
        output_number(&b, "copied", res->copied);
        if (a->mark) output_string(&b, "mark", a->mark);
        if (a->mark) output_string(&b, "consumer", a->consumer);
        if (a->dry_run) {
            output_bool(&b, "dry_run", true);
        }
        if (a->dry_run && !a->undo) {
            output_member(&b, "columns");
            buf_adds(&b, res->mapping);
        }
        buf_adds(&b, "}\n");
    } else say(&b, a, res);
    int r = output_flush(&b, err);
    buf_release(&b);
    return r;
}

static int check(const struct args *a, struct error *err)
{
    bool more = a->shape || a->existing || a->n_columns;
    if (a->undo && (more || a->mark || a->drop_mark))
        return options_usage(err, "--undo takes no --shape, --column, --existing, --mark or --drop-mark");
    if (a->drop_mark && (a->mark || a->existing))
        return options_usage(err, "--drop-mark takes no --mark or --existing");
    if (a->mark && !a->consumer)
        return options_usage(err, "--mark: whose delivery counts? Say --consumer NAME, the one that takes over");
    if (a->consumer && !a->mark) return options_usage(err, "--consumer is for --mark");
    return 0;
}

static int run(struct cli *cli, struct error *err)
{
    const struct args *a = &cli->args;
    struct adopt_request req = {.table = a->pos[0],
                                .shape = a->shape ? a->shape : shapes[0],
                                .existing = a->existing,
                                .columns = a->columns,
                                .n_columns = a->n_columns,
                                .mark = a->mark,
                                .consumer = a->consumer,
                                .drop_mark = a->drop_mark,
                                .undo = a->undo,
                                .dry_run = a->dry_run};
    struct adopt_result res = {0};
    struct store *st;
    if (check(a, err) != 0) return -1;
    if (a->undo && !a->dry_run && confirm(cli, err, "stop making events of the rows of %.200s", a->pos[0]) != 0)
        return -1;
    if (commands_store(cli, false, &st, err) != 0) return -1;
    int r = st->ops->adopt
                ? st->ops->adopt(st, &req, &res, err)
                : err_set(err, ERR_CONFIG, "adopting a table is for PostgreSQL; a %s: store cannot", st->ops->scheme);
    store_close(st);
    return r == 0 ? report(cli, &res, err) : -1;
}

const struct command cmd_adopt[] = {
    {.name = "adopt",
     .args = "TABLE",
     .help = "make events of the rows of an outbox table there is already",
     .options = options,
     .min = 1,
     .max = 1,
     .run = run},
    {.name = NULL},
};
