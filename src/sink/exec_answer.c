/* exec_answer.c: what the end of a command means for its event. */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "base/text.h"
#include "sink/exec_impl.h"

#define WORD_MAX 256 /* bytes of a command's first word that are compared */

/* The meaning of exit statuses; all others are SINK_RETRY. */
static const struct {
    int code;
    enum sink_status status;
} exit_codes[] = {
    {0, SINK_DELIVERED}, {65, SINK_REJECT}, {75, SINK_RETRY}, {126, SINK_DOWN}, {127, SINK_DOWN},
};

/* Copies the last line of stderr, cleaned for printing. */
static void last_words(const struct run *r, char out[EXEC_TAIL + 1])
{
    size_t n = r->tail_n;
    while (n && (unsigned char)r->tail[n - 1] <= ' ')
        n--;

    const char *line = r->tail, *end = r->tail + n;
    const char *lf = memrchr(r->tail, '\n', n);
    if (lf)
        line = lf + 1;
    text_clean(out, EXEC_TAIL + 1, line, (size_t)(end - line));
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* The first word of the command, without quotes around it. */
static struct str first_word(const char *command)
{
    const char *ends = EXEC_BLANKS;
    command += strspn(command, EXEC_BLANKS);
    if (*command == '"')
        ends = "\"";
    else if (*command == '\'')
        ends = "'";
    if (*command == *ends)
        command++;
    return (struct str){command, strcspn(command, ends)};
}

/* Whether the shell reported, with exit status 126 or 127, that the command does not exist or may
 * not be run. A program may exit with these as well, for one event, and so may a part of the
 * command that only some events reach. So the message must come from the shell itself, and be about
 * the first word of the command, which is the same for every event. */
static bool is_missing(const struct exec *x, const char *words)
{
    static const char *const complaints[] = {"not found", "Permission denied",
                                             "No such file or directory"};
    char about[WORD_MAX + 8];
    struct str word = first_word(x->command);
    if (word.n > WORD_MAX)
        word.n = WORD_MAX;
    snprintf(about, sizeof about, ": %.*s: ", (int)word.n, word.p);

    bool of_the_shell = strncmp(words, "sh: ", 4) == 0 && strstr(words, about);
    if (!of_the_shell)
        return false;
    for (size_t i = 0; i < sizeof complaints / sizeof complaints[0]; i++) {
        if (ends_with(words, complaints[i]))
            return true;
    }
    return false;
}

/* Returns what an exit status means. */
static enum sink_status status_of(const struct exec *x, int code, const char *words)
{
    enum sink_status status = SINK_RETRY;
    for (size_t i = 0; i < sizeof exit_codes / sizeof exit_codes[0]; i++) {
        if (exit_codes[i].code == code)
            status = exit_codes[i].status;
    }
    if (status == SINK_DOWN && !is_missing(x, words))
        return SINK_RETRY;
    return status;
}

/* Returns what the end of a command means, and writes the reason, without its last words. A command
 * that was told to end has not delivered, even with exit status 0: many programs exit with that on
 * SIGTERM, their work undone. Delivering again is safe; trusting that status is not. */
static struct sink_result judge(const struct exec *x, const struct run *r, const siginfo_t *si,
                                const char *words, char why[EXEC_WHY])
{
    struct sink_result res = {.status = SINK_RETRY, .native = si->si_status};
    bool exited = si->si_code == CLD_EXITED;
    bool succeeded = exited && si->si_status == 0 && r->told == TOLD_NOTHING;

    if (si->si_code == 0) {
        /* Retrying would deliver the event repeatedly without ever knowing. */
        res.status = SINK_FATAL;
        snprintf(why, EXEC_WHY, "exit statuses are lost: this process ignores SIGCHLD");
    } else if (succeeded) {
        res.status = SINK_DELIVERED;
    } else if (x->cancelling) {
        res.status = SINK_CANCELLED;
        snprintf(why, EXEC_WHY, "cancelled");
    } else if (r->told != TOLD_NOTHING) {
        char limit[32];
        text_duration_show(x->base.cfg.timeout_ms, limit);
        snprintf(why, EXEC_WHY, "timed out after %s", limit);
    } else if (exited) {
        res.status = status_of(x, si->si_status, words);
        snprintf(why, EXEC_WHY, "exit status %d", si->si_status);
    } else {
        snprintf(why, EXEC_WHY, "killed by signal %d", si->si_status);
    }
    return res;
}

struct sink_result exec_judge(const struct exec *x, const struct run *r, const siginfo_t *si,
                              char text[EXEC_TEXT])
{
    char why[EXEC_WHY] = "", words[EXEC_TAIL + 1];
    last_words(r, words);
    struct sink_result res = judge(x, r, si, words, why);
    if (res.status == SINK_DELIVERED)
        return res;

    if (words[0])
        snprintf(text, EXEC_TEXT, "%s: %s", why, words);
    else
        snprintf(text, EXEC_TEXT, "%s", why);
    res.text = text;
    return res;
}
