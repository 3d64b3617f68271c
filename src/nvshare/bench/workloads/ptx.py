"""The kernels, hand-written: a card compiles them when they are loaded, the simulated driver knows them by name."""

from __future__ import annotations

ADD = "nvs_add_f32"  # (u64 z, u64 x, u64 y, u64 n): z[i] = x[i] + y[i] for i < n
SPIN = "nvs_spin"  # (u64 ns): every thread waits that long on the card's clock

BURN = "nvs_burn"  # (u64 rounds): every thread computes so many rounds; for real cards, where time is shared

PTX = """\
.version 6.3
.target sm_75
.address_size 64

.visible .entry nvs_add_f32(
	.param .u64 param_z,
	.param .u64 param_x,
	.param .u64 param_y,
	.param .u64 param_n
)
{
	.reg .pred %done;
	.reg .b32 %t, %b, %w, %g;
	.reg .f32 %fx, %fy, %fz;
	.reg .b64 %pz, %px, %py, %count, %i, %step, %offset, %az, %ax, %ay, %wide;

	ld.param.u64 %pz, [param_z];
	ld.param.u64 %px, [param_x];
	ld.param.u64 %py, [param_y];
	ld.param.u64 %count, [param_n];
	cvta.to.global.u64 %pz, %pz;
	cvta.to.global.u64 %px, %px;
	cvta.to.global.u64 %py, %py;

	mov.u32 %t, %tid.x;
	mov.u32 %b, %ctaid.x;
	mov.u32 %w, %ntid.x;
	mov.u32 %g, %nctaid.x;
	mul.wide.u32 %i, %b, %w;
	cvt.u64.u32 %wide, %t;
	add.u64 %i, %i, %wide;
	mul.wide.u32 %step, %g, %w;

$L_next:
	setp.ge.u64 %done, %i, %count;
	@%done bra $L_end;
	shl.b64 %offset, %i, 2;
	add.u64 %ax, %px, %offset;
	add.u64 %ay, %py, %offset;
	add.u64 %az, %pz, %offset;
	ld.global.f32 %fx, [%ax];
	ld.global.f32 %fy, [%ay];
	add.rn.f32 %fz, %fx, %fy;
	st.global.f32 [%az], %fz;
	add.u64 %i, %i, %step;
	bra $L_next;
$L_end:
	ret;
}

.visible .entry nvs_spin(
	.param .u64 param_ns
)
{
	.reg .pred %again;
	.reg .b64 %start, %now, %spent, %wanted;

	ld.param.u64 %wanted, [param_ns];
	mov.u64 %start, %globaltimer;
$L_wait:
	mov.u64 %now, %globaltimer;
	sub.u64 %spent, %now, %start;
	setp.lt.u64 %again, %spent, %wanted;
	@%again bra $L_wait;
	ret;
}
"""

# By the special function unit, which takes little power, so that clocks stay up. Cosines of cosines come to 0.739 and
# are never 0.5 by chance: nothing is stored, but a compiler does not know that.
BURN_PTX = """\
.version 6.3
.target sm_75
.address_size 64

.visible .entry nvs_burn(
	.param .u64 param_rounds
)
{
	.reg .pred %again, %stored;
	.reg .b32 %t;
	.reg .f32 %x;
	.reg .b64 %left;

	ld.param.u64 %left, [param_rounds];
	mov.u32 %t, %tid.x;
	cvt.rn.f32.u32 %x, %t;
$L_round:
	cos.approx.ftz.f32 %x, %x;
	sub.u64 %left, %left, 1;
	setp.ne.u64 %again, %left, 0;
	@%again bra $L_round;
	setp.eq.f32 %stored, %x, 0f3F000000;
	@%stored st.global.f32 [%left], %x;
	ret;
}
"""
