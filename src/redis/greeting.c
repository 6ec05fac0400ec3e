#include "redis/greeting.h"

#include <stdio.h>
#include <string.h>

#include "redis/reply.h"

/* greet appends one command of the greeting. A failure shows in c->greet.failed. */
static void greet(struct redis_conn *c, enum redis_greeting what, int argc, const char **argv)
{
    c->asked[c->n_asked++] = what;
    if (redis_conn_format(&c->greet, argc, argv, NULL) != 0)
        c->greet.failed = true;
}

int redis_greeting_make(struct redis_conn *c, struct error *err)
{
    c->secret = redis_url_password(c->url, err);
    bool unreadable = !c->secret && err->code;
    if (unreadable)
        return -1;

    const char *user = c->url->user;
    if (c->secret && user)
        greet(c, GREET_AUTH, 3, (const char *[]){"AUTH", user, c->secret});
    else if (c->secret)
        greet(c, GREET_AUTH, 2, (const char *[]){"AUTH", c->secret});
    char db[24];
    snprintf(db, sizeof db, "%lld", (long long)c->url->db);
    if (c->url->db)
        greet(c, GREET_SELECT, 2, (const char *[]){"SELECT", db});
    greet(c, GREET_NAME, 3, (const char *[]){"CLIENT", "SETNAME", c->name});
    if (c->master_only)
        greet(c, GREET_ROLE, 1, (const char *[]){"ROLE"});
    if (c->greet.failed)
        return err_nomem(err);
    return 0;
}

/* is_harmless says whether we can work although the server refused a command of the greeting: a
 * connection without a name is as good, unless the server would refuse everything in the same way.
 * NOPERM is about CLIENT or ROLE alone, which no delivery needs: a replica says so at the first
 * write. */
static bool is_harmless(enum redis_greeting what, const char *said)
{
    bool needed = what == GREET_AUTH || what == GREET_SELECT;
    if (needed)
        return false;
    if (strncmp(said, "NOPERM", 6) == 0)
        return true;
    enum redis_fault fault = redis_fault_of(said);
    return fault != REDIS_FAULT_AWAY && fault != REDIS_FAULT_LOGIN;
}

static int refused(const struct redis_conn *c, enum redis_greeting what, const redisReply *r,
                   struct error *err)
{
    static const char *const names[] = {[GREET_AUTH] = "AUTH",
                                        [GREET_SELECT] = "SELECT",
                                        [GREET_NAME] = "CLIENT SETNAME",
                                        [GREET_ROLE] = "ROLE"};
    char text[REDIS_TEXT];
    redis_conn_text(c, r, text);

    /* Waiting does not help if the server does not have the database. */
    bool no_such_db = what == GREET_SELECT && redis_fault_of(r->str) == REDIS_FAULT_UNKNOWN;
    enum retry_class fate = no_such_db ? CLASS_FATAL : CLASS_DOWN;
    return err_class(err, ERR_UNAVAILABLE, fate, 0, "%s refused %s: %s", c->url->label, names[what],
                     text);
}

/* check_role refuses a server that is not a master: a Sentinel may be late to know. */
static int check_role(const struct redis_conn *c, const redisReply *r, struct error *err)
{
    bool told = r->type == REDIS_REPLY_ARRAY && r->elements > 0 &&
                r->element[0]->type == REDIS_REPLY_STRING;
    bool master = told && strcmp(r->element[0]->str, "master") == 0;
    if (master)
        return 0;
    return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0, "%s is not a master now", c->url->label);
}

int redis_greeting_answered(struct redis_conn *c, const redisReply *r, struct error *err)
{
    enum redis_greeting what = c->asked[c->greeted++];
    if (what == GREET_ROLE && r->type != REDIS_REPLY_ERROR)
        return check_role(c, r, err);
    if (r->type != REDIS_REPLY_ERROR)
        return 0;
    if (is_harmless(what, r->str))
        return 0;
    return refused(c, what, r, err);
}
