/* The migrations, embedded. (gcc 12 has no #embed.) */
    .section .rodata
    .global sqlite_schema_1
    .global sqlite_schema_1_end
    .hidden sqlite_schema_1
    .hidden sqlite_schema_1_end
sqlite_schema_1:
    .incbin "sql/sqlite/0001_outbox.sql"
sqlite_schema_1_end:
    .byte 0
    .section .note.GNU-stack,"",%progbits
