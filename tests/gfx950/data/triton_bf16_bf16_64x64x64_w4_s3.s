	.amdgcn_target "amdgpu9.50-amd-amdhsa-unknown-gfx950"
	.amdhsa_code_object_version 5
	.text
	.globl	gemm
	.p2align	8
	.type	gemm,@function
gemm:
	s_load_dwordx8 s[8:15], s[4:5], 0x0
	s_waitcnt lgkmcnt(0)
	s_branch .LBB0_0
	.p2align	8
.LBB0_0:
	s_load_dword s24, s[4:5], 0x20
	v_and_b32_e32 v14, 0x3ff, v0
	v_and_b32_e32 v1, 56, v0
	v_readfirstlane_b32 s0, v14
	s_bfe_u32 s25, s0, 0x20006
	s_lshl_b32 s33, s16, 6
	s_lshl_b32 s28, s25, 6
	v_or_b32_e32 v4, s25, v1
	v_and_b32_e32 v15, 7, v0
	v_and_b32_e32 v3, 63, v0
	s_and_b32 s18, s28, 0x80
	v_lshlrev_b32_e32 v2, 3, v15
	s_and_b32 s19, s28, 64
	v_or_b32_e32 v5, s33, v4
	s_lshl_b32 s38, s17, 6
	v_or_b32_e32 v12, s28, v3
	v_or_b32_e32 v6, 4, v4
	v_cmp_gt_i32_e32 vcc, s14, v5
	s_waitcnt lgkmcnt(0)
	s_cmp_gt_i32 s24, 0
	v_cmp_gt_i32_e64 s[6:7], s24, v2
	s_mov_b64 s[20:21], s[10:11]
	v_lshrrev_b32_e32 v8, 3, v12
	v_or_b32_e32 v7, s33, v6
	s_mul_i32 s29, s24, s33
	s_cselect_b64 s[30:31], -1, 0
	s_and_b64 s[16:17], s[6:7], vcc
	v_mad_u64_u32 v[4:5], s[10:11], v4, s24, v[2:3]
	v_or_b32_e32 v10, 32, v8
	v_cmp_gt_i32_e64 s[0:1], s14, v7
	v_mad_u64_u32 v[6:7], s[10:11], v6, s24, v[2:3]
	s_mul_i32 s27, s25, 0x410
	v_add_lshl_u32 v5, v4, s29, 1
	v_bfrev_b32_e32 v22, 1
	s_and_b64 s[16:17], s[30:31], s[16:17]
	v_or_b32_e32 v9, s38, v8
	v_or_b32_e32 v11, s38, v10
	s_and_b64 s[22:23], s[6:7], s[0:1]
	s_and_b32 s9, s9, 0xffff
	s_mov_b32 s11, 0x27000
	s_mov_b32 s10, 0x7ffffffe
	v_cndmask_b32_e64 v5, v22, v5, s[16:17]
	s_mov_b32 m0, s27
	v_cmp_gt_i32_e64 s[2:3], s15, v9
	v_cmp_gt_i32_e64 s[4:5], s15, v11
	buffer_load_dwordx4 v5, s[8:11], 0 offen lds
	v_add_lshl_u32 v5, v6, s29, 1
	s_and_b64 s[16:17], s[30:31], s[22:23]
	v_cndmask_b32_e64 v5, v22, v5, s[16:17]
	s_and_b64 s[16:17], s[6:7], s[2:3]
	s_and_b64 s[34:35], s[6:7], s[4:5]
	v_mad_u64_u32 v[8:9], s[6:7], v8, s24, v[2:3]
	v_mad_u64_u32 v[10:11], s[6:7], v10, s24, v[2:3]
	v_lshlrev_b32_e32 v9, 3, v12
	v_lshrrev_b32_e32 v11, 1, v12
	v_bitop3_b32 v11, v11, v9, 56 bitop3:0x6c
	v_sub_u32_e32 v9, v11, v9
	v_ashrrev_i32_e32 v9, 3, v9
	s_mul_i32 s36, s24, s38
	s_add_i32 m0, s27, 0x1040
	v_add_u32_e32 v23, v9, v3
	buffer_load_dwordx4 v5, s[8:11], 0 offen lds
	v_add_u32_e32 v5, s36, v8
	v_lshlrev_b32_e32 v24, 2, v23
	ds_bpermute_b32 v5, v24, v5
	s_and_b64 s[6:7], s[30:31], s[16:17]
	v_cndmask_b32_e64 v9, 0, 1, s[6:7]
	v_cmp_ne_u32_e64 s[6:7], 0, v9
	s_lshl_b32 s26, s25, 10
	s_waitcnt lgkmcnt(0)
	v_lshlrev_b32_e32 v5, 1, v5
	v_lshrrev_b64 v[12:13], v23, s[6:7]
	v_and_b32_e32 v9, 1, v12
	v_cmp_eq_u32_e64 s[6:7], 1, v9
	v_add_u32_e32 v7, s36, v10
	s_and_b32 s21, s21, 0xffff
	s_mov_b32 s22, s10
	s_mov_b32 s23, s11
	s_add_i32 m0, s26, 0x6170
	v_cndmask_b32_e64 v5, v22, v5, s[6:7]
	buffer_load_dwordx4 v5, s[20:23], 0 offen lds
	ds_bpermute_b32 v5, v24, v7
	s_and_b64 s[6:7], s[30:31], s[34:35]
	v_cndmask_b32_e64 v7, 0, 1, s[6:7]
	v_cmp_ne_u32_e64 s[6:7], 0, v7
	s_add_i32 m0, s26, 0x7170
	s_waitcnt lgkmcnt(0)
	v_lshlrev_b32_e32 v5, 1, v5
	v_lshrrev_b64 v[12:13], v23, s[6:7]
	v_and_b32_e32 v7, 1, v12
	v_cmp_eq_u32_e64 s[6:7], 1, v7
	s_cmp_gt_i32 s24, 64
	s_cselect_b64 s[30:31], -1, 0
	v_cndmask_b32_e64 v5, v22, v5, s[6:7]
	buffer_load_dwordx4 v5, s[20:23], 0 offen lds
	v_or_b32_e32 v5, 64, v2
	v_cmp_gt_i32_e64 s[6:7], s24, v5
	s_and_b64 s[16:17], s[6:7], vcc
	s_add_i32 s29, s29, 64
	v_add_lshl_u32 v4, v4, s29, 1
	s_and_b64 s[16:17], s[30:31], s[16:17]
	s_and_b64 s[34:35], s[6:7], s[0:1]
	s_add_i32 m0, s27, 0x2080
	v_cndmask_b32_e64 v4, v22, v4, s[16:17]
	buffer_load_dwordx4 v4, s[8:11], 0 offen lds
	v_add_lshl_u32 v4, v6, s29, 1
	s_and_b64 s[16:17], s[30:31], s[34:35]
	s_add_i32 m0, s27, 0x30c0
	v_cndmask_b32_e64 v4, v22, v4, s[16:17]
	s_add_i32 s36, s36, 64
	buffer_load_dwordx4 v4, s[8:11], 0 offen lds
	s_and_b64 s[16:17], s[6:7], s[2:3]
	v_add_u32_e32 v4, s36, v8
	s_and_b64 s[34:35], s[6:7], s[4:5]
	ds_bpermute_b32 v7, v24, v4
	s_and_b64 s[6:7], s[30:31], s[16:17]
	v_cndmask_b32_e64 v4, 0, 1, s[6:7]
	v_cmp_ne_u32_e64 s[6:7], 0, v4
	v_add_u32_e32 v6, s36, v10
	s_add_i32 m0, s26, 0x8170
	v_lshrrev_b64 v[4:5], v23, s[6:7]
	v_and_b32_e32 v4, 1, v4
	s_waitcnt lgkmcnt(0)
	v_lshlrev_b32_e32 v5, 1, v7
	v_cmp_eq_u32_e64 s[6:7], 1, v4
	ds_bpermute_b32 v6, v24, v6
	v_and_b32_e32 v16, 31, v0
	v_cndmask_b32_e64 v4, v22, v5, s[6:7]
	s_and_b64 s[6:7], s[30:31], s[34:35]
	buffer_load_dwordx4 v4, s[20:23], 0 offen lds
	v_cndmask_b32_e64 v4, 0, 1, s[6:7]
	v_cmp_ne_u32_e64 s[6:7], 0, v4
	s_add_i32 m0, s26, 0x9170
	v_and_b32_e32 v17, 32, v0
	v_lshrrev_b64 v[4:5], v23, s[6:7]
	v_and_b32_e32 v4, 1, v4
	s_waitcnt lgkmcnt(0)
	v_lshlrev_b32_e32 v5, 1, v6
	v_cmp_eq_u32_e64 s[6:7], 1, v4
	v_lshlrev_b32_e32 v0, 4, v14
	v_and_b32_e32 v26, 0x180, v0
	v_cndmask_b32_e64 v4, v22, v5, s[6:7]
	buffer_load_dwordx4 v4, s[20:23], 0 offen lds
	v_lshrrev_b32_e32 v27, 1, v17
	v_lshlrev_b32_e32 v0, 7, v16
	v_lshlrev_b32_e32 v4, 3, v14
	s_movk_i32 s7, 0x70
	s_add_i32 s34, s24, 0xffffff80
	s_lshl_b32 s30, s18, 2
	v_lshl_or_b32 v0, s19, 6, v0
	v_bitop3_b32 v4, v4, v27, s7 bitop3:0x6c
	s_movk_i32 s7, 0x60
	s_movk_i32 s6, 0x80
	s_mov_b32 s29, 0
	s_mov_b32 s35, 1
	s_cmp_lt_i32 s34, 1
	v_lshlrev_b32_e32 v25, 10, v15
	v_lshlrev_b32_e32 v28, 4, v15
	v_or_b32_e32 v21, v0, v4
	v_bitop3_b32 v20, v0, 32, v4 bitop3:0x36
	v_bitop3_b32 v19, v0, 64, v4 bitop3:0x36
	v_bitop3_b32 v18, v0, s7, v4 bitop3:0x36
	s_waitcnt vmcnt(4)
	s_barrier
	s_cbranch_scc1 .LBB0_3
	v_add_u32_e32 v0, s28, v3
	v_lshrrev_b32_e32 v0, 3, v0
	v_add_u32_e32 v0, s38, v0
	v_add_u32_e32 v3, 32, v0
	v_mul_lo_u32 v3, s24, v3
	s_add_i32 s25, s25, s33
	v_add3_u32 v29, v3, v2, s6
	v_mul_lo_u32 v0, s24, v0
	v_add_u32_e32 v3, s25, v1
	v_add3_u32 v30, v0, v2, s6
	v_add_u32_e32 v0, 4, v3
	v_mad_u64_u32 v[0:1], s[6:7], s24, v0, v[2:3]
	v_mov_b32_e32 v4, 0x100
	v_lshl_add_u32 v31, v0, 1, v4
	v_mad_u64_u32 v[0:1], s[6:7], s24, v3, v[2:3]
	v_lshl_add_u32 v32, v0, 1, v4
	v_mov_b32_e32 v0, 0
	s_movk_i32 s28, 0x2080
	s_movk_i32 s31, 0x6170
	s_mov_b32 s25, 0x8170
	v_or_b32_e32 v33, 0x80, v2
	v_mov_b32_e32 v1, v0
	v_mov_b32_e32 v2, v0
	v_mov_b32_e32 v3, v0
	v_mov_b32_e32 v4, v0
	v_mov_b32_e32 v5, v0
	v_mov_b32_e32 v6, v0
	v_mov_b32_e32 v7, v0
	v_mov_b32_e32 v8, v0
	v_mov_b32_e32 v9, v0
	v_mov_b32_e32 v10, v0
	v_mov_b32_e32 v11, v0
	v_mov_b32_e32 v12, v0
	v_mov_b32_e32 v13, v0
	v_mov_b32_e32 v14, v0
	v_mov_b32_e32 v15, v0
	s_mov_b32 s36, 0
.LBB0_2:
	s_add_i32 s16, s35, 1
	v_add_u32_e32 v34, s36, v33
	s_cmp_lt_i32 s16, 3
	v_cmp_gt_i32_e64 s[6:7], s24, v34
	s_cselect_b32 s35, s16, 0
	s_and_b64 s[16:17], vcc, s[6:7]
	v_add_u32_e32 v35, s36, v30
	v_cndmask_b32_e64 v40, v22, v32, s[16:17]
	s_and_b64 s[16:17], s[0:1], s[6:7]
	s_mov_b32 s37, s29
	s_mov_b32 s29, s28
	v_add_u32_e32 v36, s36, v29
	ds_bpermute_b32 v38, v24, v35
	v_cndmask_b32_e64 v41, v22, v31, s[16:17]
	s_and_b64 s[16:17], s[2:3], s[6:7]
	s_lshl_b32 s28, s35, 7
	ds_bpermute_b32 v39, v24, v36
	v_cndmask_b32_e64 v34, 0, 1, s[16:17]
	s_and_b64 s[6:7], s[4:5], s[6:7]
	s_lshl_b32 s39, s35, 13
	s_and_b32 s28, s28, 0x7ffff80
	v_cndmask_b32_e64 v35, 0, 1, s[6:7]
	v_cmp_ne_u32_e64 s[6:7], 0, v34
	s_add_i32 s28, s39, s28
	v_cmp_ne_u32_e64 s[16:17], 0, v35
	v_lshrrev_b64 v[34:35], v23, s[6:7]
	s_add_i32 s41, s28, s27
	v_lshrrev_b64 v[36:37], v23, s[16:17]
	v_and_b32_e32 v34, 1, v34
	s_mov_b32 m0, s41
	s_add_i32 s40, s39, s26
	v_and_b32_e32 v35, 1, v36
	s_waitcnt lgkmcnt(1)
	v_lshlrev_b32_e32 v36, 1, v38
	v_cmp_eq_u32_e64 s[16:17], 1, v34
	buffer_load_dwordx4 v40, s[8:11], 0 offen lds
	s_add_i32 m0, s41, 0x1040
	s_mov_b32 s22, s10
	s_mov_b32 s23, s11
	s_waitcnt lgkmcnt(0)
	v_lshlrev_b32_e32 v37, 1, v39
	v_cmp_eq_u32_e64 s[6:7], 1, v35
	v_cndmask_b32_e64 v34, v22, v36, s[16:17]
	buffer_load_dwordx4 v41, s[8:11], 0 offen lds
	s_add_i32 m0, s40, 0x6170
	v_cndmask_b32_e64 v35, v22, v37, s[6:7]
	buffer_load_dwordx4 v34, s[20:23], 0 offen lds
	s_add_i32 m0, s40, 0x7170
	s_add_i32 s6, s30, s37
	buffer_load_dwordx4 v35, s[20:23], 0 offen lds
	v_add3_u32 v35, s6, v25, v26
	v_add3_u32 v35, v35, v27, v28
	v_add_u32_e32 v34, s31, v21
	ds_read_b128 v[36:39], v35
	ds_read_b128 v[40:43], v35 offset:32
	ds_read_b128 v[44:47], v35 offset:64
	ds_read_b128 v[48:51], v35 offset:96
	ds_read_b128 v[52:55], v34
	v_add_u32_e32 v34, s31, v20
	ds_read_b128 v[56:59], v34
	s_waitcnt lgkmcnt(1)
	v_mfma_f32_32x32x16_bf16 v[0:15], v[52:55], v[36:39], v[0:15]
	v_add_u32_e32 v34, s31, v19
	ds_read_b128 v[36:39], v34
	v_add_u32_e32 v34, s31, v18
	s_mov_b32 s31, s25
	s_add_i32 s36, s36, 64
	s_add_i32 s25, s39, 0x6170
	v_add_u32_e32 v31, 0x80, v31
	s_waitcnt lgkmcnt(1)
	v_mfma_f32_32x32x16_bf16 v[0:15], v[56:59], v[40:43], v[0:15]
	ds_read_b128 v[40:43], v34
	v_add_u32_e32 v32, 0x80, v32
	s_cmp_lt_i32 s36, s34
	s_waitcnt vmcnt(4) lgkmcnt(0)
	s_barrier
	v_mfma_f32_32x32x16_bf16 v[0:15], v[36:39], v[44:47], v[0:15]
	v_mfma_f32_32x32x16_bf16 v[0:15], v[40:43], v[48:51], v[0:15]
	s_cbranch_scc1 .LBB0_2
	s_branch .LBB0_4
.LBB0_3:
	v_mov_b32_e32 v15, 0
	s_movk_i32 s28, 0x2080
	s_movk_i32 s31, 0x6170
	s_mov_b32 s25, 0x8170
	v_mov_b32_e32 v14, v15
	v_mov_b32_e32 v13, v15
	v_mov_b32_e32 v12, v15
	v_mov_b32_e32 v11, v15
	v_mov_b32_e32 v10, v15
	v_mov_b32_e32 v9, v15
	v_mov_b32_e32 v8, v15
	v_mov_b32_e32 v7, v15
	v_mov_b32_e32 v6, v15
	v_mov_b32_e32 v5, v15
	v_mov_b32_e32 v4, v15
	v_mov_b32_e32 v3, v15
	v_mov_b32_e32 v2, v15
	v_mov_b32_e32 v1, v15
	v_mov_b32_e32 v0, v15
.LBB0_4:
	v_or_b32_e32 v22, s30, v25
	s_add_i32 s24, s24, 63
	v_or3_b32 v22, v22, v26, v27
	s_cmp_lt_i32 s24, 64
	v_add_u32_e32 v22, v22, v28
	s_cbranch_scc1 .LBB0_6
	v_add_u32_e32 v23, s31, v21
	ds_read_b128 v[26:29], v23
	v_add_u32_e32 v23, s29, v22
	ds_read_b128 v[30:33], v23
	ds_read_b128 v[34:37], v23 offset:32
	v_add_u32_e32 v24, s31, v20
	s_waitcnt lgkmcnt(1)
	v_mfma_f32_32x32x16_bf16 v[0:15], v[26:29], v[30:33], v[0:15]
	ds_read_b128 v[26:29], v24
	v_add_u32_e32 v24, s31, v19
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_32x32x16_bf16 v[0:15], v[26:29], v[34:37], v[0:15]
	ds_read_b128 v[26:29], v24
	ds_read_b128 v[30:33], v23 offset:64
	v_add_u32_e32 v24, s31, v18
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_32x32x16_bf16 v[0:15], v[26:29], v[30:33], v[0:15]
	ds_read_b128 v[24:27], v24
	ds_read_b128 v[28:31], v23 offset:96
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_32x32x16_bf16 v[0:15], v[24:27], v[28:31], v[0:15]
.LBB0_6:
	s_cmpk_lt_i32 s24, 0x80
	s_waitcnt vmcnt(0)
	s_barrier
	s_cbranch_scc1 .LBB0_8
	v_add_u32_e32 v21, s25, v21
	ds_read_b128 v[24:27], v21
	v_add_u32_e32 v21, s28, v22
	ds_read_b128 v[28:31], v21
	ds_read_b128 v[32:35], v21 offset:32
	v_add_u32_e32 v20, s25, v20
	v_add_u32_e32 v19, s25, v19
	v_add_u32_e32 v18, s25, v18
	s_waitcnt lgkmcnt(1)
	v_mfma_f32_32x32x16_bf16 v[0:15], v[24:27], v[28:31], v[0:15]
	ds_read_b128 v[22:25], v20
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_32x32x16_bf16 v[0:15], v[22:25], v[32:35], v[0:15]
	ds_read_b128 v[22:25], v19
	ds_read_b128 v[26:29], v21 offset:64
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_32x32x16_bf16 v[0:15], v[22:25], v[26:29], v[0:15]
	ds_read_b128 v[22:25], v18
	ds_read_b128 v[18:21], v21 offset:96
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_32x32x16_bf16 v[0:15], v[22:25], v[18:21], v[0:15]
.LBB0_8:
	v_lshrrev_b32_e32 v17, 2, v17
	s_lshr_b32 s0, s19, 1
	v_or_b32_e32 v17, s0, v17
	s_lshr_b32 s0, s18, 2
	v_or_b32_e32 v16, s0, v16
	v_or_b32_e32 v49, s33, v16
	v_cmp_gt_i32_e32 vcc, s14, v49
	s_mul_i32 s14, s15, s33
	v_or_b32_e32 v18, 23, v17
	v_or_b32_e32 v48, s38, v17
	s_nop 1
	v_cvt_pk_bf16_f32 v0, v0, v1
	v_cvt_pk_bf16_f32 v1, v2, v3
	v_cvt_pk_bf16_f32 v2, v4, v5
	v_cvt_pk_bf16_f32 v4, v8, v9
	v_mul_lo_u32 v8, v16, s15
	s_add_i32 s14, s14, s38
	v_or_b32_e32 v19, s38, v18
	v_or_b32_e32 v20, 22, v17
	v_or_b32_e32 v22, 21, v17
	v_or_b32_e32 v24, 20, v17
	v_or_b32_e32 v26, 19, v17
	v_or_b32_e32 v28, 18, v17
	v_or_b32_e32 v30, 17, v17
	v_or_b32_e32 v32, 16, v17
	v_or_b32_e32 v34, 7, v17
	v_or_b32_e32 v36, 6, v17
	v_or_b32_e32 v38, 5, v17
	v_or_b32_e32 v40, 4, v17
	v_or_b32_e32 v42, 3, v17
	v_or_b32_e32 v44, 2, v17
	v_or_b32_e32 v46, 1, v17
	v_cmp_gt_i32_e64 s[18:19], s15, v48
	v_add_u32_e32 v8, s14, v8
	v_or_b32_e32 v21, s38, v20
	v_or_b32_e32 v23, s38, v22
	v_or_b32_e32 v25, s38, v24
	v_or_b32_e32 v27, s38, v26
	v_or_b32_e32 v29, s38, v28
	v_or_b32_e32 v31, s38, v30
	v_or_b32_e32 v33, s38, v32
	v_or_b32_e32 v35, s38, v34
	v_or_b32_e32 v37, s38, v36
	v_or_b32_e32 v39, s38, v38
	v_or_b32_e32 v41, s38, v40
	v_or_b32_e32 v43, s38, v42
	v_or_b32_e32 v45, s38, v44
	v_or_b32_e32 v47, s38, v46
	v_cmp_gt_i32_e64 s[0:1], s15, v19
	v_add_lshl_u32 v17, v8, v17, 1
	v_bfrev_b32_e32 v19, 1
	s_and_b64 s[18:19], vcc, s[18:19]
	v_cmp_gt_i32_e64 s[20:21], s15, v47
	v_cmp_gt_i32_e64 s[22:23], s15, v45
	v_cmp_gt_i32_e64 s[24:25], s15, v43
	v_cmp_gt_i32_e64 s[26:27], s15, v41
	v_cmp_gt_i32_e64 s[28:29], s15, v39
	v_cmp_gt_i32_e64 s[30:31], s15, v37
	v_cmp_gt_i32_e64 s[34:35], s15, v35
	v_cmp_gt_i32_e64 s[36:37], s15, v33
	v_cmp_gt_i32_e64 s[16:17], s15, v31
	v_cmp_gt_i32_e64 s[10:11], s15, v29
	v_cmp_gt_i32_e64 s[8:9], s15, v27
	v_cmp_gt_i32_e64 s[6:7], s15, v25
	v_cmp_gt_i32_e64 s[4:5], s15, v23
	v_cmp_gt_i32_e64 s[2:3], s15, v21
	v_permlane32_swap_b32_e32 v0, v2
	s_and_b32 s13, s13, 0xffff
	s_mov_b32 s15, 0x27000
	s_mov_b32 s14, 0x7ffffffe
	v_cndmask_b32_e64 v17, v19, v17, s[18:19]
	v_lshrrev_b32_e32 v9, 16, v0
	buffer_store_short v0, v17, s[12:15], 0 offen
	v_add_lshl_u32 v0, v8, v46, 1
	s_and_b64 s[18:19], vcc, s[20:21]
	v_cndmask_b32_e64 v0, v19, v0, s[18:19]
	v_cvt_pk_bf16_f32 v3, v6, v7
	buffer_store_short v9, v0, s[12:15], 0 offen
	v_add_lshl_u32 v0, v8, v44, 1
	s_and_b64 s[18:19], vcc, s[22:23]
	v_permlane32_swap_b32_e32 v1, v3
	v_cndmask_b32_e64 v0, v19, v0, s[18:19]
	buffer_store_short v1, v0, s[12:15], 0 offen
	v_add_lshl_u32 v0, v8, v42, 1
	s_and_b64 s[18:19], vcc, s[24:25]
	v_cvt_pk_bf16_f32 v5, v10, v11
	v_lshrrev_b32_e32 v10, 16, v1
	v_cndmask_b32_e64 v0, v19, v0, s[18:19]
	buffer_store_short v10, v0, s[12:15], 0 offen
	v_add_lshl_u32 v0, v8, v40, 1
	s_and_b64 s[18:19], vcc, s[26:27]
	v_cndmask_b32_e64 v0, v19, v0, s[18:19]
	buffer_store_short v2, v0, s[12:15], 0 offen
	v_add_lshl_u32 v0, v8, v38, 1
	s_and_b64 s[18:19], vcc, s[28:29]
	v_lshrrev_b32_e32 v11, 16, v2
	v_cndmask_b32_e64 v0, v19, v0, s[18:19]
	buffer_store_short v11, v0, s[12:15], 0 offen
	v_add_lshl_u32 v0, v8, v36, 1
	s_and_b64 s[18:19], vcc, s[30:31]
	v_cndmask_b32_e64 v0, v19, v0, s[18:19]
	buffer_store_short v3, v0, s[12:15], 0 offen
	v_add_lshl_u32 v0, v8, v34, 1
	s_and_b64 s[18:19], vcc, s[34:35]
	v_cvt_pk_bf16_f32 v6, v12, v13
	v_lshrrev_b32_e32 v12, 16, v3
	v_cndmask_b32_e64 v0, v19, v0, s[18:19]
	buffer_store_short v12, v0, s[12:15], 0 offen
	v_add_lshl_u32 v0, v8, v32, 1
	s_and_b64 s[18:19], vcc, s[36:37]
	v_permlane32_swap_b32_e32 v4, v6
	v_cndmask_b32_e64 v0, v19, v0, s[18:19]
	buffer_store_short v4, v0, s[12:15], 0 offen
	v_add_lshl_u32 v0, v8, v30, 1
	s_and_b64 s[16:17], vcc, s[16:17]
	v_lshrrev_b32_e32 v13, 16, v4
	v_cndmask_b32_e64 v0, v19, v0, s[16:17]
	v_cvt_pk_bf16_f32 v7, v14, v15
	buffer_store_short v13, v0, s[12:15], 0 offen
	v_add_lshl_u32 v0, v8, v28, 1
	s_and_b64 s[10:11], vcc, s[10:11]
	v_permlane32_swap_b32_e32 v5, v7
	v_cndmask_b32_e64 v0, v19, v0, s[10:11]
	buffer_store_short v5, v0, s[12:15], 0 offen
	v_add_lshl_u32 v0, v8, v26, 1
	s_and_b64 s[8:9], vcc, s[8:9]
	v_lshrrev_b32_e32 v14, 16, v5
	v_cndmask_b32_e64 v0, v19, v0, s[8:9]
	buffer_store_short v14, v0, s[12:15], 0 offen
	v_add_lshl_u32 v0, v8, v24, 1
	s_and_b64 s[6:7], vcc, s[6:7]
	v_cndmask_b32_e64 v0, v19, v0, s[6:7]
	buffer_store_short v6, v0, s[12:15], 0 offen
	v_add_lshl_u32 v0, v8, v22, 1
	s_and_b64 s[4:5], vcc, s[4:5]
	v_lshrrev_b32_e32 v15, 16, v6
	v_cndmask_b32_e64 v0, v19, v0, s[4:5]
	buffer_store_short v15, v0, s[12:15], 0 offen
	v_add_lshl_u32 v0, v8, v20, 1
	s_and_b64 s[2:3], vcc, s[2:3]
	v_cndmask_b32_e64 v0, v19, v0, s[2:3]
	buffer_store_short v7, v0, s[12:15], 0 offen
	v_add_lshl_u32 v0, v8, v18, 1
	s_and_b64 vcc, vcc, s[0:1]
	v_lshrrev_b32_e32 v16, 16, v7
	v_cndmask_b32_e32 v0, v19, v0, vcc
	buffer_store_short v16, v0, s[12:15], 0 offen
	s_endpgm
.Lfunc_end0:
	.size	gemm, .Lfunc_end0-gemm
	.section	.rodata,"a",@progbits
	.p2align	6, 0x0
	.amdhsa_kernel gemm
		.amdhsa_group_segment_fixed_size 49520
		.amdhsa_private_segment_fixed_size 0
		.amdhsa_kernarg_size 312
		.amdhsa_user_sgpr_count 16
		.amdhsa_user_sgpr_dispatch_ptr 1
		.amdhsa_user_sgpr_queue_ptr 1
		.amdhsa_user_sgpr_kernarg_segment_ptr 1
		.amdhsa_user_sgpr_dispatch_id 1
		.amdhsa_user_sgpr_kernarg_preload_length 8
		.amdhsa_user_sgpr_kernarg_preload_offset 0
		.amdhsa_user_sgpr_private_segment_size 0
		.amdhsa_uses_dynamic_stack 0
		.amdhsa_enable_private_segment 0
		.amdhsa_system_sgpr_workgroup_id_x 1
		.amdhsa_system_sgpr_workgroup_id_y 1
		.amdhsa_system_sgpr_workgroup_id_z 1
		.amdhsa_system_sgpr_workgroup_info 0
		.amdhsa_system_vgpr_workitem_id 2
		.amdhsa_next_free_vgpr 60
		.amdhsa_next_free_sgpr 42
		.amdhsa_accum_offset 60
		.amdhsa_reserve_vcc 1
		.amdhsa_reserve_xnack_mask 1
		.amdhsa_float_round_mode_32 0
		.amdhsa_float_round_mode_16_64 0
		.amdhsa_float_denorm_mode_32 3
		.amdhsa_float_denorm_mode_16_64 3
		.amdhsa_dx10_clamp 1
		.amdhsa_ieee_mode 1
		.amdhsa_fp16_overflow 0
		.amdhsa_tg_split 0
		.amdhsa_exception_fp_ieee_invalid_op 0
		.amdhsa_exception_fp_denorm_src 0
		.amdhsa_exception_fp_ieee_div_zero 0
		.amdhsa_exception_fp_ieee_overflow 0
		.amdhsa_exception_fp_ieee_underflow 0
		.amdhsa_exception_fp_ieee_inexact 0
		.amdhsa_exception_int_div_zero 0
	.end_amdhsa_kernel
	.text
	.section	.AMDGPU.csdata,"",@progbits
	.text
	.p2alignl 6, 3212836864
	.fill 256, 4, 3212836864
	.section	.AMDGPU.gpr_maximums,"",@progbits
	.text
	.section	".note.GNU-stack","",@progbits
	.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     0
    .args:
      - .address_space:  global
        .offset:         0
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         8
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         16
        .size:           8
        .value_kind:     global_buffer
      - .offset:         24
        .size:           4
        .value_kind:     by_value
      - .offset:         28
        .size:           4
        .value_kind:     by_value
      - .offset:         32
        .size:           4
        .value_kind:     by_value
      - .address_space:  global
        .offset:         40
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         48
        .size:           8
        .value_kind:     global_buffer
      - .offset:         56
        .size:           4
        .value_kind:     hidden_block_count_x
      - .offset:         60
        .size:           4
        .value_kind:     hidden_block_count_y
      - .offset:         64
        .size:           4
        .value_kind:     hidden_block_count_z
      - .offset:         68
        .size:           2
        .value_kind:     hidden_group_size_x
      - .offset:         70
        .size:           2
        .value_kind:     hidden_group_size_y
      - .offset:         72
        .size:           2
        .value_kind:     hidden_group_size_z
      - .offset:         74
        .size:           2
        .value_kind:     hidden_remainder_x
      - .offset:         76
        .size:           2
        .value_kind:     hidden_remainder_y
      - .offset:         78
        .size:           2
        .value_kind:     hidden_remainder_z
      - .offset:         96
        .size:           8
        .value_kind:     hidden_global_offset_x
      - .offset:         104
        .size:           8
        .value_kind:     hidden_global_offset_y
      - .offset:         112
        .size:           8
        .value_kind:     hidden_global_offset_z
      - .offset:         120
        .size:           2
        .value_kind:     hidden_grid_dims
      - .offset:         136
        .size:           8
        .value_kind:     hidden_hostcall_buffer
      - .offset:         144
        .size:           8
        .value_kind:     hidden_multigrid_sync_arg
      - .offset:         152
        .size:           8
        .value_kind:     hidden_heap_v1
      - .offset:         160
        .size:           8
        .value_kind:     hidden_default_queue
      - .offset:         168
        .size:           8
        .value_kind:     hidden_completion_action
      - .offset:         176
        .size:           4
        .value_kind:     hidden_dynamic_lds_size
      - .offset:         256
        .size:           8
        .value_kind:     hidden_queue_ptr
    .group_segment_fixed_size: 49520
    .kernarg_segment_align: 8
    .kernarg_segment_size: 312
    .max_flat_workgroup_size: 256
    .name:           gemm
    .private_segment_fixed_size: 0
    .sgpr_count:     48
    .sgpr_spill_count: 0
    .symbol:         gemm.kd
    .uniform_work_group_size: 1
    .uses_dynamic_stack: false
    .vgpr_count:     60
    .vgpr_spill_count: 0
    .wavefront_size: 64
amdhsa.target:   amdgpu9.50-amd-amdhsa-unknown-gfx950
amdhsa.version:
  - 1
  - 2
...
	.end_amdgpu_metadata
