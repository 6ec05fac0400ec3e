#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/buf.h"

static void buffer_doubles_up_to_its_ceiling(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 1000);
    for (int i = 0; i < 1000; i++)
        buf_addc(&b, (char)('a' + i % 26));
    assert_false(b.failed);
    assert_int_equal(b.n, 1000);
    assert_int_equal(b.cap, 1000);
    assert_int_equal(strlen(buf_cstr(&b)), 1000);
    buf_addc(&b, 'x');
    assert_true(b.failed && b.full);
    assert_int_equal(b.n, 1000);
    buf_release(&b);
}

static void failed_append_keeps_the_content_and_is_sticky(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 10);
    buf_adds(&b, "12345");
    buf_adds(&b, "678901");
    assert_true(b.failed);
    buf_adds(&b, "6"); /* it would fit, but the previous append failed */
    buf_addc(&b, '6');
    buf_addi64(&b, 6);
    buf_addf(&b, "%d", 6);
    assert_null(buf_reserve(&b, 1));
    assert_null(buf_cstr(&b));
    assert_int_equal(b.n, 5);
    assert_memory_equal(b.p, "12345", 5);
    buf_release(&b);
}

static void truncate_undoes_a_half_written_record(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 10);
    buf_adds(&b, "one;");
    size_t mark = b.n;
    buf_adds(&b, "two");
    buf_adds(&b, "toolong");
    assert_true(b.failed);
    buf_truncate(&b, mark);
    assert_string_equal(buf_cstr(&b), "one;");
    buf_truncate(&b, 100);
    assert_int_equal(b.n, 4);
    buf_release(&b);
}

static void clear_resets_the_error_and_keeps_the_memory(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 300);
    buf_adds(&b, "abc");
    char *p = b.p;
    buf_reserve(&b, 400);
    buf_clear(&b);
    assert_false(b.failed);
    buf_adds(&b, "def");
    assert_ptr_equal(b.p, p);
    assert_string_equal(buf_cstr(&b), "def");
    buf_release(&b);
}

static void cstr_of_an_empty_buffer_is_empty(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 0);
    assert_string_equal(buf_cstr(&b), "");
    buf_addc(&b, 'x');
    assert_null(buf_cstr(&b));
    buf_release(&b);
    buf_release(&b);
}

static void cstr_fits_at_the_ceiling(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 3);
    buf_addf(&b, "%s", "abc");
    assert_string_equal(buf_cstr(&b), "abc");
    buf_release(&b);
}

static void numbers_are_written_as_by_printf(void **state)
{
    (void)state;
    static const int64_t numbers[] = {0, 1, -1, 9, 10, -10, 1234567890123, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct buf b;
        char want[32];
        buf_init(&b, 100);
        buf_addi64(&b, numbers[i]);
        snprintf(want, sizeof want, "%lld", (long long)numbers[i]);
        assert_string_equal(buf_cstr(&b), want);
        buf_release(&b);
    }
}

static void huge_sizes_fail_without_overflow(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, SIZE_MAX);
    buf_adds(&b, "x");
    assert_null(buf_reserve(&b, SIZE_MAX));
    buf_clear(&b);
    assert_null(buf_reserve(&b, SIZE_MAX));
    buf_release(&b);
}

static void absent_strings_add_nothing(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 10);
    buf_addstr(&b, (struct str){NULL, 0});
    buf_addstr(&b, STR("a\0b"));
    assert_int_equal(b.n, 3);
    assert_memory_equal(b.p, "a\0b", 3);
    buf_release(&b);
}

static void memory_is_aligned_for_any_type(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a, 0);
    for (size_t i = 0; i < 1000; i++) {
        char *p = arena_alloc(&a, i);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % _Alignof(max_align_t), 0);
        memset(p, 0xAA, i);
        assert_non_null(arena_bytes(&a, "xyz", i % 3));
    }
    arena_release(&a);
}

static void pieces_do_not_overlap(void **state)
{
    (void)state;
    struct arena a;
    char *pieces[500];
    arena_init(&a, 0);
    for (size_t i = 0; i < 500; i++) {
        pieces[i] = arena_alloc(&a, 1 + i * 7);
        assert_non_null(pieces[i]);
        memset(pieces[i], (int)(i & 0xFF), 1 + i * 7);
    }
    for (size_t i = 0; i < 500; i++)
        for (size_t j = 0; j < 1 + i * 7; j++)
            assert_int_equal((unsigned char)pieces[i][j], i & 0xFF);
    arena_release(&a);
}

/* After a few rounds of the same size, one block holds the batch, so the first allocation always
 * returns the same address. */
static void batches_of_steady_size_reuse_one_block(void **state)
{
    (void)state;
    struct arena a;
    struct arena_block *settled = NULL;
    arena_init(&a, 0);
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 1000; i++)
            assert_non_null(arena_alloc(&a, 700));
        if (round == 3)
            settled = a.head;
        if (round > 3)
            assert_ptr_equal(a.head, settled);
        assert_true(a.used >= 700000);
        arena_reset(&a);
        assert_int_equal(a.used, 0);
    }
    arena_release(&a);
    assert_null(a.head);
}

static void limit_counts_allocated_bytes(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a, 1000);
    assert_non_null(arena_alloc(&a, 600));
    assert_null(arena_alloc(&a, 600));
    assert_non_null(arena_bytes(&a, "", 0));
    assert_null(arena_alloc(&a, SIZE_MAX));
    assert_true(a.used <= 1000);
    arena_reset(&a);
    assert_non_null(arena_alloc(&a, 1000));
    assert_null(arena_alloc(&a, 1));
    arena_release(&a);
}

static void zalloc_zeroes_reused_memory_and_refuses_overflow(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a, 0);
    char *p = arena_alloc(&a, 4096);
    memset(p, 0xFF, 4096);
    arena_reset(&a);
    p = arena_zalloc(&a, 64, 64);
    for (int i = 0; i < 4096; i++)
        assert_int_equal(p[i], 0);
    assert_null(arena_zalloc(&a, SIZE_MAX / 2, 3));
    assert_null(arena_alloc(&a, SIZE_MAX - 8));
    arena_release(&a);
}

static void bytes_copies_and_terminates(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a, 0);
    char *p = arena_bytes(&a, "a\0bcd", 3);
    assert_memory_equal(p, "a\0b", 4);
    assert_string_equal(arena_bytes(&a, NULL, 0), "");
    assert_null(arena_bytes(&a, p, SIZE_MAX));
    arena_release(&a);
}

static void one_piece_may_be_larger_than_any_block(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a, 0);
    char *small = arena_alloc(&a, 10);
    char *large = arena_alloc(&a, 5 << 20);
    assert_non_null(small);
    assert_non_null(large);
    memset(large, 1, 5 << 20);
    memset(small, 2, 10);
    assert_int_equal(large[0], 1);
    arena_reset(&a);
    char *again = arena_alloc(&a, 5 << 20);
    assert_ptr_equal(again, large);
    arena_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffer_doubles_up_to_its_ceiling),
        cmocka_unit_test(failed_append_keeps_the_content_and_is_sticky),
        cmocka_unit_test(truncate_undoes_a_half_written_record),
        cmocka_unit_test(clear_resets_the_error_and_keeps_the_memory),
        cmocka_unit_test(cstr_of_an_empty_buffer_is_empty),
        cmocka_unit_test(cstr_fits_at_the_ceiling),
        cmocka_unit_test(numbers_are_written_as_by_printf),
        cmocka_unit_test(huge_sizes_fail_without_overflow),
        cmocka_unit_test(absent_strings_add_nothing),
        cmocka_unit_test(memory_is_aligned_for_any_type),
        cmocka_unit_test(pieces_do_not_overlap),
        cmocka_unit_test(batches_of_steady_size_reuse_one_block),
        cmocka_unit_test(limit_counts_allocated_bytes),
        cmocka_unit_test(zalloc_zeroes_reused_memory_and_refuses_overflow),
        cmocka_unit_test(bytes_copies_and_terminates),
        cmocka_unit_test(one_piece_may_be_larger_than_any_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
