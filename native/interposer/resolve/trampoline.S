/* dlsym and dlvsym as seen by the application.
 *
 * The C library decides by its caller's return address what RTLD_NEXT means, so the real function must be reached by a jump
 * that leaves the caller's frame as it was. A compiler may or may not make such a tail call; here it is certain. */

#if defined(__x86_64__)

.macro FORWARD name, route, real
	.globl	\name
	.type	\name, @function
\name:
	.cfi_startproc
	endbr64
	pushq	%rdi
	.cfi_adjust_cfa_offset 8
	pushq	%rsi
	.cfi_adjust_cfa_offset 8
	pushq	%rdx
	.cfi_adjust_cfa_offset 8
	call	\route
	popq	%rdx
	.cfi_adjust_cfa_offset -8
	popq	%rsi
	.cfi_adjust_cfa_offset -8
	popq	%rdi
	.cfi_adjust_cfa_offset -8
	testq	%rax, %rax
	jne	1f
	jmp	*\real(%rip)
1:	ret
	.cfi_endproc
	.size	\name, .-\name
.endm

#elif defined(__aarch64__)

.macro FORWARD name, route, real
	.globl	\name
	.type	\name, %function
\name:
	.cfi_startproc
	stp	x29, x30, [sp, #-48]!
	.cfi_adjust_cfa_offset 48
	stp	x0, x1, [sp, #16]
	str	x2, [sp, #32]
	bl	\route
	mov	x9, x0
	ldp	x0, x1, [sp, #16]
	ldr	x2, [sp, #32]
	ldp	x29, x30, [sp], #48
	.cfi_adjust_cfa_offset -48
	cbz	x9, 1f
	mov	x0, x9
	ret
1:	adrp	x9, \real
	ldr	x9, [x9, #:lo12:\real]
	br	x9
	.cfi_endproc
	.size	\name, .-\name
.endm

#else
#error "nvshare supports x86-64 and arm64"
#endif

	.text
	FORWARD dlsym, nvs_route_dlsym, nvs_libc_dlsym
	FORWARD dlvsym, nvs_route_dlvsym, nvs_libc_dlvsym

	.section .note.GNU-stack, "", %progbits
