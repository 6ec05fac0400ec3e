/* cmd_adopt.c: outbox adopt, which turns the rows of an application's own table into events. */
#include "cli/cli.h"

struct adopt_args {
    const char *shape, *existing, *mark, *consumer;
    struct pairs_arg columns; /* each FIELD=COLUMN; the store validates the fields */
    bool drop_mark, undo;
};

static const char *const shapes[] = {"auto", "processed_at", "debezium", NULL};
static const char *const existing[] = {"copy", "skip", NULL};

static const struct option_def options[] = {
    {"shape", "NAME", NULL,
     "layout of the table: processed_at, debezium, or auto to detect it (the default)", option_word,
     OWN(adopt_args, shape), .names = shapes},
    {"column", "FIELD=COLUMN", NULL,
     "column that holds a field, if it cannot be found by name; the fields are id, type, "
     "aggregate_type, aggregate_id, payload, created_at, processed_at and tenant; FIELD= if the "
     "table has none; FIELD='TEXT' for a constant type, aggregate_type or tenant; may be repeated",
     commands_pair, OWN(adopt_args, columns), .max = 8},
    {"existing", "WHAT", NULL,
     "what to do with rows that are not processed yet: copy them (the default) or skip them",
     option_word, OWN(adopt_args, existing), .names = existing},
    {"mark", "COLUMN", NULL,
     "set this column (processed_at) once --consumer has received a row, so that the old system "
     "leaves it alone; a timestamp or a boolean",
     option_name, OWN(adopt_args, mark)},
    {"consumer", "NAME", NULL, "with --mark: the consumer whose deliveries count", option_checked,
     OWN(adopt_args, consumer), .check = store_name_check},
    {"drop-mark", NULL, "no", "stop marking rows; new rows still become events", option_bool,
     OWN(adopt_args, drop_mark)},
    {"undo", NULL, "no", "stop turning rows into events; existing events are kept", option_bool,
     OWN(adopt_args, undo)},
    OPTION_YES,
    OPTION_DRY_RUN,
    OPTION_JSON,
    OPTION_END,
};

/* ---- the answer ---- */

/* The outcome for the table. */
enum answer {
    ADOPTED,
    REMAPPED, /* already adopted, with another column mapping */
    UNCHANGED,
    UNMARKED,
    NOT_MARKED,
    UNDONE,
    NOT_ADOPTED,
};

/* A call of adopt and its result. */
struct adoption {
    struct adopt_request req;
    struct adopt_result res;
    bool adopted;
    struct str columns; /* of a dry run */
};

/* Returns the outcome for the table; with --dry-run, the outcome it would have. */
static enum answer answer_of(const struct adoption *d)
{
    if (d->req.undo)
        return d->res.changed ? UNDONE : NOT_ADOPTED;
    if (d->req.drop_mark)
        return d->res.changed ? UNMARKED : NOT_MARKED;
    if (!d->res.changed)
        return UNCHANGED;
    if (d->res.other_columns)
        return REMAPPED;
    return ADOPTED;
}

/* Describes the result in one line, or two with --mark. A dry run also lists the columns that would
 * be read. */
static void adoption_text(struct buf *b, const void *row)
{
    static const char *const said[][2] = {
        [REMAPPED] = {"already adopted; new rows will be read with these columns, and "
                      "existing events are kept",
                      "already adopted; new rows would be read with these columns"},
        [UNCHANGED] = {"already adopted; nothing to do",
                       "already adopted, with these columns; nothing would be done"},
        [UNMARKED] = {"rows are no longer marked", "rows would no longer be marked"},
        [NOT_MARKED] = {"rows were not marked; nothing to do",
                        "rows are not marked; nothing would be done"},
        [UNDONE] = {"no longer adopted; existing events are kept",
                    "would no longer be adopted; existing events would be kept"},
        [NOT_ADOPTED] = {"was not adopted; nothing to do", "is not adopted; nothing would be done"},
    };
    const struct adoption *d = row;
    const struct adopt_request *req = &d->req;
    const struct adopt_result *res = &d->res;
    enum answer answer = answer_of(d);
    const char *events = res->copied == 1 ? "an event" : "events";
    const char *n = human_count(res->copied, "unprocessed row");
    output_addf(b, "%s: ", req->table);
    if (answer != ADOPTED)
        buf_addf(b, "%s\n", said[answer][req->dry_run]);
    else if (req->dry_run)
        buf_addf(b, "would be adopted, and %s would become %s\n", n, events);
    else
        buf_addf(b, "adopted; %s became %s\n", n, events);

    if (req->mark && res->changed)
        output_addf(b, "%s: rows %s marked in %s once consumer \"%s\" has received them\n",
                    req->table, req->dry_run ? "would be" : "are", req->mark, req->consumer);
    if (req->dry_run && !req->undo && !req->drop_mark)
        output_addf(b, "columns: %s\n", res->mapping);
}

#define AT(member) .at = offsetof(struct adoption, member)
static const struct listing_field fields_adoption[] = {
    {"table", LISTING_TEXT, AT(req.table), "the table"},
    {"adopted", LISTING_BOOL, AT(adopted), "whether its rows become events"},
    {"changed", LISTING_BOOL, AT(res.changed), "whether anything was changed"},
    {"copied", LISTING_INT, AT(res.copied), "unprocessed rows that became events"},
    {"mark", LISTING_TEXT, AT(req.mark), "with --mark: the column that is set", .optional = true},
    {"consumer", LISTING_TEXT, AT(req.consumer), "with --mark: the consumer whose deliveries count",
     .optional = true},
    {"dry_run", LISTING_BOOL, AT(req.dry_run), "true: nothing was done", .optional = true},
    {"columns", LISTING_JSON, AT(columns), "with --dry-run: the column of each field",
     .optional = true},
    {NULL},
};
#undef AT

/* ---- the command ---- */

/* Checks the options. --undo asks first. */
static int adopt_check(struct cli *cli, struct error *err)
{
    const struct adopt_args *a = cli_own(cli);
    bool describes = a->shape || a->existing || a->columns.n;
    bool marks = a->mark || a->drop_mark;
    const struct {
        bool broken;
        const char *text;
    } rules[] = {
        {a->undo && (describes || marks),
         "--undo cannot be combined with --shape, --column, --existing, --mark or --drop-mark"},
        {a->drop_mark && (a->mark || a->existing), "--drop-mark cannot be combined with --mark or "
                                                   "--existing"},
        {a->mark && !a->consumer, "--mark needs --consumer NAME, whose deliveries count"},
        {a->consumer && !a->mark, "--consumer needs --mark COLUMN"},
    };
    for (size_t i = 0; i < sizeof(rules) / sizeof(*rules); i++) {
        if (rules[i].broken)
            return commands_usage(err, "%s", rules[i].text);
    }
    if (!a->undo || cli->args.dry_run)
        return 0;
    return output_confirm(cli, err, "stop turning rows of %.200s into events", cli->args.pos[0]);
}

static int adopt_run(struct cli *cli, struct error *err)
{
    const struct adopt_args *a = cli_own(cli);
    struct store *st = cli->st;
    struct adoption d = {.adopted = !a->undo};
    d.req = (struct adopt_request){
        .table = cli->args.pos[0],
        .shape = a->shape ? a->shape : shapes[0],
        .existing = a->existing,
        .columns = a->columns.pair,
        .n_columns = a->columns.n,
        .mark = a->mark,
        .consumer = a->consumer,
        .drop_mark = a->drop_mark,
        .undo = a->undo,
        .dry_run = cli->args.dry_run,
    };
    if (!st->ops->adopt)
        return err_set(err, ERR_CONFIG, "a %s: store cannot adopt a table", st->ops->scheme);
    if (st->ops->adopt(st, &d.req, &d.res, err) != 0)
        return -1;
    if (d.req.dry_run && !a->undo)
        d.columns = str_of(d.res.mapping);
    return output_result(cli, fields_adoption, &d, adoption_text, err);
}

const struct command cmd_adopt[] = {
    {"adopt", NULL, "TABLE", "turn the rows of an existing outbox table into events",
     .options = options, .min = 1, .max = 1, .opens = OPENS_STORE,
     .json = JSON_OBJECT(fields_adoption), .check = adopt_check, .run = adopt_run},
    {NULL},
};
