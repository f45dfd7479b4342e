	.amdgcn_target "amdgpu9.50-amd-amdhsa-unknown-gfx950"
	.amdhsa_code_object_version 5
	.text
	.globl	mx_gemm
	.p2align	8
	.type	mx_gemm,@function
mx_gemm:
	s_load_dwordx8 s[8:15], s[4:5], 0x0
	s_waitcnt lgkmcnt(0)
	s_branch .LBB0_0
	.p2align	8
.LBB0_0:
	s_load_dwordx4 s[44:47], s[4:5], 0x20
	s_load_dword s43, s[4:5], 0x30
	s_mov_b64 s[52:53], s[10:11]
	s_lshl_b32 s33, s16, 4
	v_and_b32_e32 v14, 0x3ff, v0
	v_bfe_u32 v1, v0, 4, 6
	s_waitcnt lgkmcnt(0)
	s_ashr_i32 s10, s43, 31
	s_lshr_b32 s0, s43, 31
	s_lshr_b32 s10, s10, 27
	v_bfe_u32 v12, v0, 2, 8
	s_add_i32 s0, s43, s0
	s_add_i32 s10, s43, s10
	v_or_b32_e32 v3, 8, v1
	v_or_b32_e32 v4, 12, v1
	v_and_b32_e32 v5, 15, v0
	v_or_b32_e32 v10, s33, v12
	s_lshl_b32 s42, s17, 4
	s_ashr_i32 s30, s0, 1
	s_ashr_i32 s31, s10, 5
	v_lshlrev_b32_e32 v18, 2, v14
	v_or_b32_e32 v2, 4, v1
	v_or_b32_e32 v8, s33, v3
	v_or_b32_e32 v9, s33, v4
	v_or_b32_e32 v15, s42, v4
	v_lshlrev_b32_e32 v4, 2, v5
	v_cmp_gt_i32_e64 s[6:7], s46, v10
	s_cmp_gt_i32 s43, 0
	v_xor_b32_e32 v10, 0x208, v18
	v_or_b32_e32 v19, 0x200, v18
	s_mov_b64 s[48:49], s[14:15]
	v_or_b32_e32 v6, s33, v1
	v_or_b32_e32 v7, s33, v2
	v_cmp_gt_i32_e64 s[2:3], s46, v8
	v_cmp_gt_i32_e64 s[4:5], s46, v9
	s_cselect_b64 s[26:27], -1, 0
	v_cmp_gt_i32_e64 s[10:11], s30, v4
	v_mad_u64_u32 v[8:9], s[14:15], s30, v1, v[4:5]
	v_sub_u32_e32 v10, v10, v19
	v_cmp_gt_i32_e32 vcc, s46, v6
	v_cmp_gt_i32_e64 s[0:1], s46, v7
	s_mul_i32 s56, s30, s33
	v_mad_u64_u32 v[6:7], s[14:15], s30, 12, v[8:9]
	s_and_b64 s[28:29], s[10:11], s[26:27]
	v_ashrrev_i32_e32 v20, 2, v10
	v_xor_b32_e32 v10, 0x30c, v18
	v_or_b32_e32 v29, 0x300, v18
	v_add_u32_e32 v17, s56, v8
	v_sub_u32_e32 v10, v10, v29
	s_and_b64 s[14:15], s[28:29], vcc
	v_ashrrev_i32_e32 v26, 2, v10
	ds_bpermute_b32 v22, v18, v17
	v_cndmask_b32_e64 v10, 0, 1, s[14:15]
	v_or_b32_e32 v11, s42, v1
	v_or_b32_e32 v13, s42, v2
	v_cmp_ne_u32_e64 s[14:15], 0, v10
	v_cmp_gt_i32_e64 s[16:17], s47, v11
	v_cmp_gt_i32_e64 s[18:19], s47, v13
	v_xor_b32_e32 v9, 0x104, v18
	v_or_b32_e32 v13, 0x100, v18
	v_lshrrev_b64 v[10:11], v0, s[14:15]
	v_sub_u32_e32 v9, v9, v13
	v_and_b32_e32 v10, 1, v10
	v_ashrrev_i32_e32 v9, 2, v9
	v_bfrev_b32_e32 v21, 1
	v_cmp_eq_u32_e64 s[14:15], 1, v10
	v_cmp_gt_i32_e64 s[22:23], s47, v15
	v_lshl_add_u32 v15, s30, 2, v8
	s_waitcnt lgkmcnt(0)
	v_cndmask_b32_e64 v10, v21, v22, s[14:15]
	v_add_u32_e32 v22, v9, v14
	v_add_u32_e32 v1, s56, v15
	v_lshlrev_b32_e32 v23, 2, v22
	s_and_b64 s[14:15], s[28:29], s[0:1]
	ds_bpermute_b32 v1, v23, v1
	v_cndmask_b32_e64 v9, 0, 1, s[14:15]
	s_and_b32 s9, s9, 0xffff
	s_mov_b32 s11, 0x27000
	s_mov_b32 s10, 0x7ffffffe
	s_mov_b32 m0, 0
	v_cmp_ne_u32_e64 s[14:15], 0, v9
	buffer_load_dword v10, s[8:11], 0 offen lds
	v_or_b32_e32 v16, s42, v12
	v_lshrrev_b64 v[10:11], v22, s[14:15]
	v_and_b32_e32 v9, 1, v10
	v_or_b32_e32 v3, s42, v3
	v_cmp_gt_i32_e64 s[24:25], s47, v16
	v_lshl_add_u32 v16, s30, 3, v8
	v_cmp_eq_u32_e64 s[14:15], 1, v9
	v_add_u32_e32 v24, v20, v14
	v_cmp_gt_i32_e64 s[20:21], s47, v3
	v_add_u32_e32 v3, s56, v16
	s_waitcnt lgkmcnt(0)
	v_cndmask_b32_e64 v1, v21, v1, s[14:15]
	s_movk_i32 m0, 0x100
	v_lshlrev_b32_e32 v25, 2, v24
	s_and_b64 s[14:15], s[28:29], s[2:3]
	buffer_load_dword v1, s[8:11], 0 offen lds
	ds_bpermute_b32 v1, v25, v3
	v_cndmask_b32_e64 v3, 0, 1, s[14:15]
	v_cmp_ne_u32_e64 s[14:15], 0, v3
	v_add_u32_e32 v26, v26, v14
	s_mul_i32 s57, s30, s42
	v_lshrrev_b64 v[10:11], v24, s[14:15]
	v_and_b32_e32 v3, 1, v10
	v_cmp_eq_u32_e64 s[14:15], 1, v3
	v_add_u32_e32 v7, s56, v6
	s_movk_i32 m0, 0x200
	s_waitcnt lgkmcnt(0)
	v_cndmask_b32_e64 v1, v21, v1, s[14:15]
	s_and_b64 s[14:15], s[28:29], s[4:5]
	v_lshlrev_b32_e32 v27, 2, v26
	v_cndmask_b32_e64 v3, 0, 1, s[14:15]
	buffer_load_dword v1, s[8:11], 0 offen lds
	ds_bpermute_b32 v1, v27, v7
	v_cmp_ne_u32_e64 s[14:15], 0, v3
	v_add_u32_e32 v28, s57, v8
	v_xor_b32_e32 v8, 0x108, v18
	v_lshrrev_b64 v[10:11], v26, s[14:15]
	v_sub_u32_e32 v8, v8, v13
	v_and_b32_e32 v3, 1, v10
	v_ashrrev_i32_e32 v10, 2, v8
	v_xor_b32_e32 v8, 0x210, v18
	v_sub_u32_e32 v8, v8, v19
	v_cmp_eq_u32_e64 s[14:15], 1, v3
	v_ashrrev_i32_e32 v11, 2, v8
	v_xor_b32_e32 v8, 0x318, v18
	s_waitcnt lgkmcnt(0)
	v_cndmask_b32_e64 v1, v21, v1, s[14:15]
	v_sub_u32_e32 v8, v8, v29
	s_and_b64 s[14:15], s[28:29], s[16:17]
	v_ashrrev_i32_e32 v13, 2, v8
	ds_bpermute_b32 v19, v18, v28
	v_cndmask_b32_e64 v8, 0, 1, s[14:15]
	v_cmp_ne_u32_e64 s[14:15], 0, v8
	s_movk_i32 m0, 0x300
	v_add_u32_e32 v29, v10, v14
	v_lshrrev_b64 v[8:9], v0, s[14:15]
	v_and_b32_e32 v8, 1, v8
	v_cmp_eq_u32_e64 s[14:15], 1, v8
	buffer_load_dword v1, s[8:11], 0 offen lds
	v_add_u32_e32 v1, s57, v15
	s_and_b32 s53, s53, 0xffff
	s_mov_b32 s54, s10
	s_mov_b32 s55, s11
	s_waitcnt lgkmcnt(0)
	v_cndmask_b32_e64 v8, v21, v19, s[14:15]
	s_movk_i32 m0, 0x800
	v_lshlrev_b32_e32 v30, 2, v29
	s_and_b64 s[14:15], s[28:29], s[18:19]
	buffer_load_dword v8, s[52:55], 0 offen lds
	ds_bpermute_b32 v1, v30, v1
	v_cndmask_b32_e64 v8, 0, 1, s[14:15]
	v_cmp_ne_u32_e64 s[14:15], 0, v8
	v_add_u32_e32 v31, v11, v14
	v_add_u32_e32 v3, s57, v16
	v_lshrrev_b64 v[8:9], v29, s[14:15]
	v_and_b32_e32 v8, 1, v8
	v_cmp_eq_u32_e64 s[14:15], 1, v8
	s_movk_i32 m0, 0x900
	v_lshlrev_b32_e32 v32, 2, v31
	s_waitcnt lgkmcnt(0)
	v_cndmask_b32_e64 v1, v21, v1, s[14:15]
	s_and_b64 s[14:15], s[28:29], s[20:21]
	buffer_load_dword v1, s[52:55], 0 offen lds
	ds_bpermute_b32 v1, v32, v3
	v_cndmask_b32_e64 v3, 0, 1, s[14:15]
	v_cmp_ne_u32_e64 s[14:15], 0, v3
	v_add_u32_e32 v33, v13, v14
	v_add_u32_e32 v7, s57, v6
	v_lshrrev_b64 v[8:9], v31, s[14:15]
	v_and_b32_e32 v3, 1, v8
	v_cmp_eq_u32_e64 s[14:15], 1, v3
	s_movk_i32 m0, 0xa00
	v_lshlrev_b32_e32 v34, 2, v33
	s_waitcnt lgkmcnt(0)
	v_cndmask_b32_e64 v1, v21, v1, s[14:15]
	s_and_b64 s[14:15], s[28:29], s[22:23]
	buffer_load_dword v1, s[52:55], 0 offen lds
	ds_bpermute_b32 v1, v34, v7
	v_cndmask_b32_e64 v3, 0, 1, s[14:15]
	v_cmp_ne_u32_e64 s[14:15], 0, v3
	v_and_b32_e32 v2, 3, v0
	s_mul_i32 s34, s31, s33
	v_lshrrev_b64 v[8:9], v33, s[14:15]
	v_and_b32_e32 v3, 1, v8
	v_cmp_eq_u32_e64 s[14:15], 1, v3
	v_mad_u64_u32 v[8:9], s[28:29], s31, v12, v[2:3]
	s_movk_i32 m0, 0xb00
	s_waitcnt lgkmcnt(0)
	v_cndmask_b32_e64 v1, v21, v1, s[14:15]
	v_cmp_gt_i32_e64 s[14:15], s31, v2
	s_and_b64 s[28:29], s[14:15], s[26:27]
	v_add_u32_e32 v36, s34, v8
	s_and_b64 s[26:27], s[28:29], s[6:7]
	s_mul_i32 s35, s31, s42
	buffer_load_dword v1, s[52:55], 0 offen lds
	s_and_b32 s13, s13, 0xffff
	s_mov_b32 s14, s10
	s_mov_b32 s15, s11
	v_cndmask_b32_e64 v1, v21, v36, s[26:27]
	buffer_load_ubyte v3, v1, s[12:15], 0 offen
	v_add_u32_e32 v37, s35, v8
	s_and_b64 s[14:15], s[28:29], s[24:25]
	s_and_b32 s49, s49, 0xffff
	s_mov_b32 s50, s10
	s_mov_b32 s51, s11
	v_cndmask_b32_e64 v1, v21, v37, s[14:15]
	buffer_load_ubyte v1, v1, s[48:51], 0 offen
	v_and_b32_e32 v0, 48, v0
	v_lshrrev_b32_e32 v7, 2, v0
	s_add_i32 s58, s43, 0xffffff80
	s_mov_b32 s59, 0
	s_movk_i32 s63, 0x800
	v_add_u32_e32 v0, 0, v14
	s_cmp_lt_i32 s58, 1
	v_lshlrev_b32_e32 v19, 6, v5
	v_and_b32_e32 v35, 12, v14
	v_bitop3_b32 v20, v7, v14, 12 bitop3:0x78
	s_waitcnt vmcnt(1)
	ds_write_b8 v0, v3 offset:4096
	s_waitcnt vmcnt(0)
	ds_write_b8 v0, v1 offset:4224
	s_cbranch_scc1 .LBB0_3
	v_lshlrev_b32_e32 v0, 1, v35
	v_xor_b32_e32 v1, v0, v7
	v_bitop3_b32 v40, v0, v19, v7 bitop3:0xde
	v_mov_b32_e32 v0, 0
	v_sub_u32_e32 v38, s30, v4
	v_sub_u32_e32 v39, s31, v2
	v_bitop3_b32 v41, v1, 16, v19 bitop3:0x36
	s_movk_i32 s28, 0x1000
	s_movk_i32 s29, 0x1080
	s_movk_i32 s60, 0xff
	s_mov_b32 s61, 0x5040100
	v_mov_b32_e32 v42, 7
	v_mov_b32_e32 v43, 64
	v_mov_b32_e32 v44, 0x7fc0
	s_mov_b32 s64, 0
	v_mov_b32_e32 v1, v0
	v_mov_b32_e32 v2, v0
	v_mov_b32_e32 v3, v0
	s_mov_b32 s62, 0
.LBB0_2:
	s_add_i32 s14, s64, 1
	s_cmp_lt_i32 s14, 2
	s_cselect_b32 s64, s14, 0
	s_addk_i32 s62, 0x80
	s_ashr_i32 s26, s62, 1
	v_cmp_lt_i32_e64 s[14:15], s26, v38
	v_add_u32_e32 v45, s28, v4
	v_add_u32_e32 v48, s29, v4
	s_add_i32 s51, s26, s56
	v_add_u32_e32 v51, s26, v17
	s_add_i32 s65, s26, s57
	v_add_u32_e32 v52, s26, v28
	s_and_b64 s[26:27], vcc, s[14:15]
	s_and_b64 s[28:29], s[0:1], s[14:15]
	s_and_b64 s[30:31], s[2:3], s[14:15]
	s_and_b64 s[34:35], s[4:5], s[14:15]
	s_and_b64 s[36:37], s[16:17], s[14:15]
	s_and_b64 s[38:39], s[18:19], s[14:15]
	s_and_b64 s[40:41], s[20:21], s[14:15]
	s_and_b64 s[14:15], s[22:23], s[14:15]
	v_cndmask_b32_e64 v8, 0, 1, s[26:27]
	v_cndmask_b32_e64 v9, 0, 1, s[28:29]
	v_cndmask_b32_e64 v10, 0, 1, s[30:31]
	v_cndmask_b32_e64 v11, 0, 1, s[34:35]
	v_cndmask_b32_e64 v12, 0, 1, s[36:37]
	v_cndmask_b32_e64 v13, 0, 1, s[38:39]
	v_cndmask_b32_e64 v46, 0, 1, s[40:41]
	v_cndmask_b32_e64 v47, 0, 1, s[14:15]
	v_cmp_ne_u32_e64 s[14:15], 0, v8
	v_cmp_ne_u32_e64 s[26:27], 0, v9
	v_cmp_ne_u32_e64 s[28:29], 0, v10
	v_cmp_ne_u32_e64 s[30:31], 0, v11
	v_cmp_ne_u32_e64 s[34:35], 0, v12
	v_cmp_ne_u32_e64 s[36:37], 0, v13
	v_cmp_ne_u32_e64 s[38:39], 0, v46
	v_cmp_ne_u32_e64 s[40:41], 0, v47
	v_lshrrev_b64 v[8:9], v14, s[14:15]
	v_lshrrev_b64 v[10:11], v22, s[26:27]
	v_lshrrev_b64 v[12:13], v24, s[28:29]
	v_lshrrev_b64 v[46:47], v26, s[30:31]
	v_and_b32_e32 v13, 1, v8
	v_lshrrev_b64 v[8:9], v14, s[34:35]
	v_and_b32_e32 v47, 1, v10
	v_lshrrev_b64 v[10:11], v29, s[36:37]
	v_and_b32_e32 v11, 1, v46
	v_and_b32_e32 v46, 1, v8
	v_lshrrev_b64 v[8:9], v31, s[38:39]
	v_and_b32_e32 v53, 1, v8
	v_lshrrev_b64 v[8:9], v33, s[40:41]
	v_add_u32_e32 v9, s51, v15
	ds_bpermute_b32 v51, v18, v51
	v_and_b32_e32 v12, 1, v12
	v_cmp_eq_u32_e64 s[14:15], 1, v47
	v_add_u32_e32 v47, s51, v16
	ds_bpermute_b32 v9, v23, v9
	v_cmp_eq_u32_e64 s[26:27], 1, v12
	v_add_u32_e32 v12, s51, v6
	ds_bpermute_b32 v47, v25, v47
	ds_bpermute_b32 v12, v27, v12
	v_add3_u32 v49, s59, v19, v20
	s_lshl_b32 s59, s64, 10
	v_and_b32_e32 v8, 1, v8
	v_cmp_eq_u32_e64 s[28:29], 1, v11
	v_add_u32_e32 v11, s65, v15
	ds_bpermute_b32 v52, v18, v52
	v_cmp_eq_u32_e64 s[40:41], 1, v13
	v_and_b32_e32 v10, 1, v10
	v_cmp_eq_u32_e64 s[30:31], 1, v46
	v_add_u32_e32 v46, s65, v16
	ds_bpermute_b32 v11, v30, v11
	v_cmp_eq_u32_e64 s[38:39], 1, v8
	s_waitcnt lgkmcnt(5)
	v_cndmask_b32_e64 v8, v21, v51, s[40:41]
	s_mov_b32 m0, s59
	s_waitcnt lgkmcnt(0)
	v_cmp_eq_u32_e64 s[34:35], 1, v10
	v_add_u32_e32 v10, s65, v6
	ds_bpermute_b32 v46, v32, v46
	v_cndmask_b32_e64 v9, v21, v9, s[14:15]
	buffer_load_dword v8, s[8:11], 0 offen lds
	s_add_i32 m0, s59, 0x100
	ds_bpermute_b32 v10, v34, v10
	v_cndmask_b32_e64 v13, v21, v47, s[26:27]
	buffer_load_dword v9, s[8:11], 0 offen lds
	s_add_i32 m0, s59, 0x200
	s_mov_b32 s50, s63
	s_add_i32 s63, s59, 0x800
	v_cndmask_b32_e64 v12, v21, v12, s[28:29]
	buffer_load_dword v13, s[8:11], 0 offen lds
	s_add_i32 m0, s59, 0x300
	s_mov_b32 s54, s10
	s_mov_b32 s55, s11
	v_cndmask_b32_e64 v51, v21, v52, s[30:31]
	buffer_load_dword v12, s[8:11], 0 offen lds
	s_mov_b32 m0, s63
	v_cmp_eq_u32_e64 s[36:37], 1, v53
	v_cndmask_b32_e64 v11, v21, v11, s[34:35]
	buffer_load_dword v51, s[52:55], 0 offen lds
	s_add_i32 m0, s59, 0x900
	s_waitcnt lgkmcnt(1)
	v_cndmask_b32_e64 v46, v21, v46, s[36:37]
	buffer_load_dword v11, s[52:55], 0 offen lds
	s_add_i32 m0, s59, 0xa00
	s_waitcnt lgkmcnt(0)
	v_cndmask_b32_e64 v10, v21, v10, s[38:39]
	buffer_load_dword v46, s[52:55], 0 offen lds
	s_add_i32 m0, s59, 0xb00
	v_add_u32_e32 v50, s50, v40
	ds_read2_b32 v[12:13], v49 offset1:4
	ds_read2_b32 v[8:9], v49 offset0:8 offset1:12
	buffer_load_dword v10, s[52:55], 0 offen lds
	ds_read_b32 v45, v45
	ds_read_b32 v56, v48
	ds_read2_b32 v[10:11], v50 offset1:8
	s_ashr_i32 s30, s62, 5
	s_mov_b32 s51, s11
	s_waitcnt lgkmcnt(2)
	v_lshlrev_b16_sdwa v46, v42, v45 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:BYTE_0
	v_max_u16_sdwa v46, v46, v43 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD
	v_cmp_eq_u16_sdwa s[14:15], v45, s60 src0_sel:BYTE_0 src1_sel:DWORD
	v_cvt_scalef32_pk_bf16_fp4 v47, v12, v46 op_sel:[1,0,0]
	v_cvt_scalef32_pk_bf16_fp4 v48, v12, v46 op_sel:[0,1,0]
	v_cndmask_b32_e64 v49, v47, v44, s[14:15]
	v_lshrrev_b32_e32 v47, 16, v47
	v_cndmask_b32_e64 v50, v48, v44, s[14:15]
	v_lshrrev_b32_e32 v48, 16, v48
	v_cndmask_b32_e64 v47, v47, v44, s[14:15]
	v_cndmask_b32_e64 v48, v48, v44, s[14:15]
	v_perm_b32 v47, v47, v49, s61
	v_cvt_scalef32_pk_bf16_fp4 v49, v12, v46 op_sel:[1,1,0]
	v_perm_b32 v48, v48, v50, s61
	v_cndmask_b32_e64 v50, v49, v44, s[14:15]
	v_lshrrev_b32_e32 v49, 16, v49
	v_cndmask_b32_e64 v49, v49, v44, s[14:15]
	v_perm_b32 v49, v49, v50, s61
	s_waitcnt lgkmcnt(1)
	v_lshlrev_b16_sdwa v50, v42, v56 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:BYTE_0
	v_max_u16_sdwa v50, v50, v43 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD
	v_cmp_eq_u16_sdwa s[26:27], v56, s60 src0_sel:BYTE_0 src1_sel:DWORD
	s_waitcnt lgkmcnt(0)
	v_cvt_scalef32_pk_bf16_fp4 v51, v10, v50 op_sel:[1,0,0]
	v_cvt_scalef32_pk_bf16_fp4 v53, v10, v50 op_sel:[0,1,0]
	v_cndmask_b32_e64 v52, v51, v44, s[26:27]
	v_lshrrev_b32_e32 v51, 16, v51
	v_cndmask_b32_e64 v54, v53, v44, s[26:27]
	v_lshrrev_b32_e32 v53, 16, v53
	v_cndmask_b32_e64 v51, v51, v44, s[26:27]
	v_cndmask_b32_e64 v53, v53, v44, s[26:27]
	v_perm_b32 v51, v51, v52, s61
	v_perm_b32 v52, v53, v54, s61
	v_cvt_scalef32_pk_bf16_fp4 v53, v10, v50 op_sel:[1,1,0]
	v_cvt_scalef32_pk_bf16_fp4 v10, v10, v50
	v_cndmask_b32_e64 v54, v53, v44, s[26:27]
	v_lshrrev_b32_e32 v53, 16, v53
	v_cndmask_b32_e64 v50, v10, v44, s[26:27]
	v_lshrrev_b32_e32 v10, 16, v10
	v_cndmask_b32_e64 v53, v53, v44, s[26:27]
	v_cndmask_b32_e64 v10, v10, v44, s[26:27]
	v_perm_b32 v53, v53, v54, s61
	v_perm_b32 v50, v10, v50, s61
	v_cvt_scalef32_pk_bf16_fp4 v10, v12, v46
	v_cndmask_b32_e64 v12, v10, v44, s[14:15]
	v_lshrrev_b32_e32 v10, 16, v10
	v_cndmask_b32_e64 v10, v10, v44, s[14:15]
	v_perm_b32 v46, v10, v12, s61
	v_lshrrev_b32_e32 v12, 8, v45
	v_cmp_eq_u16_sdwa s[14:15], v12, s60 src0_sel:BYTE_0 src1_sel:DWORD
	v_mfma_f32_16x16x32_bf16 v[0:3], v[50:53], v[46:49], v[0:3]
	v_lshlrev_b16_sdwa v46, v42, v12 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:BYTE_0
	v_max_u16_sdwa v12, v46, v43 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD
	v_add_u32_e32 v10, s50, v41
	v_cvt_scalef32_pk_bf16_fp4 v46, v13, v12
	v_cvt_scalef32_pk_bf16_fp4 v47, v13, v12 op_sel:[1,0,0]
	v_cvt_scalef32_pk_bf16_fp4 v48, v13, v12 op_sel:[0,1,0]
	v_cvt_scalef32_pk_bf16_fp4 v12, v13, v12 op_sel:[1,1,0]
	v_cndmask_b32_e64 v49, v48, v44, s[14:15]
	v_lshrrev_b32_e32 v48, 16, v48
	ds_read2_b32 v[54:55], v10 offset1:8
	v_cndmask_b32_e64 v10, v12, v44, s[14:15]
	v_lshrrev_b32_e32 v12, 16, v12
	v_cndmask_b32_e64 v48, v48, v44, s[14:15]
	v_cndmask_b32_e64 v12, v12, v44, s[14:15]
	v_perm_b32 v48, v48, v49, s61
	v_perm_b32 v49, v12, v10, s61
	v_lshrrev_b32_e32 v10, 8, v56
	v_lshlrev_b16_sdwa v12, v42, v10 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:BYTE_0
	v_cndmask_b32_e64 v13, v47, v44, s[14:15]
	v_lshrrev_b32_e32 v47, 16, v47
	v_cmp_eq_u16_sdwa s[26:27], v10, s60 src0_sel:BYTE_0 src1_sel:DWORD
	v_max_u16_sdwa v10, v12, v43 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD
	v_cndmask_b32_e64 v47, v47, v44, s[14:15]
	s_waitcnt lgkmcnt(0)
	v_cvt_scalef32_pk_bf16_fp4 v12, v54, v10 op_sel:[1,0,0]
	v_perm_b32 v47, v47, v13, s61
	v_cndmask_b32_e64 v13, v12, v44, s[26:27]
	v_lshrrev_b32_e32 v12, 16, v12
	v_cndmask_b32_e64 v12, v12, v44, s[26:27]
	v_perm_b32 v51, v12, v13, s61
	v_cvt_scalef32_pk_bf16_fp4 v12, v54, v10 op_sel:[1,1,0]
	v_cndmask_b32_e64 v13, v12, v44, s[26:27]
	v_lshrrev_b32_e32 v12, 16, v12
	v_cvt_scalef32_pk_bf16_fp4 v50, v54, v10 op_sel:[0,1,0]
	v_cndmask_b32_e64 v12, v12, v44, s[26:27]
	v_cvt_scalef32_pk_bf16_fp4 v10, v54, v10
	v_cndmask_b32_e64 v52, v50, v44, s[26:27]
	v_lshrrev_b32_e32 v50, 16, v50
	v_perm_b32 v53, v12, v13, s61
	v_cndmask_b32_e64 v12, v10, v44, s[26:27]
	v_lshrrev_b32_e32 v10, 16, v10
	v_cndmask_b32_e64 v50, v50, v44, s[26:27]
	v_cndmask_b32_e64 v10, v10, v44, s[26:27]
	v_perm_b32 v52, v50, v52, s61
	v_perm_b32 v50, v10, v12, s61
	v_lshrrev_b32_e32 v12, 16, v46
	v_cndmask_b32_e64 v10, v46, v44, s[14:15]
	v_cndmask_b32_e64 v12, v12, v44, s[14:15]
	v_perm_b32 v46, v12, v10, s61
	v_and_b32_sdwa v10, v45, s60 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:DWORD
	v_lshlrev_b16_e32 v12, 7, v10
	v_mfma_f32_16x16x32_bf16 v[0:3], v[50:53], v[46:49], v[0:3]
	v_and_b32_sdwa v46, v56, s60 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:DWORD
	v_lshlrev_b16_e32 v13, 7, v46
	v_cmp_eq_u16_e64 s[14:15], s60, v10
	v_max_u16_sdwa v10, v12, v43 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD
	v_max_u16_sdwa v12, v13, v43 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD
	v_cvt_scalef32_pk_bf16_fp4 v13, v8, v10 op_sel:[1,0,0]
	v_cvt_scalef32_pk_bf16_fp4 v50, v11, v12
	v_cvt_scalef32_pk_bf16_fp4 v47, v11, v12 op_sel:[1,0,0]
	v_cvt_scalef32_pk_bf16_fp4 v48, v11, v12 op_sel:[0,1,0]
	v_cvt_scalef32_pk_bf16_fp4 v49, v11, v12 op_sel:[1,1,0]
	v_cvt_scalef32_pk_bf16_fp4 v11, v8, v10 op_sel:[0,1,0]
	v_cndmask_b32_e64 v12, v13, v44, s[14:15]
	v_lshrrev_b32_e32 v13, 16, v13
	v_cmp_eq_u16_e64 s[26:27], s60, v46
	v_cndmask_b32_e64 v51, v11, v44, s[14:15]
	v_lshrrev_b32_e32 v11, 16, v11
	v_cndmask_b32_e64 v13, v13, v44, s[14:15]
	v_cndmask_b32_e64 v46, v47, v44, s[26:27]
	v_lshrrev_b32_e32 v47, 16, v47
	v_cndmask_b32_e64 v52, v11, v44, s[14:15]
	v_perm_b32 v11, v13, v12, s61
	v_cvt_scalef32_pk_bf16_fp4 v13, v8, v10 op_sel:[1,1,0]
	v_cndmask_b32_e64 v47, v47, v44, s[26:27]
	v_perm_b32 v12, v52, v51, s61
	v_cndmask_b32_e64 v51, v13, v44, s[14:15]
	v_lshrrev_b32_e32 v13, 16, v13
	v_perm_b32 v47, v47, v46, s61
	v_cndmask_b32_e64 v46, v49, v44, s[26:27]
	v_lshrrev_b32_e32 v49, 16, v49
	v_cvt_scalef32_pk_bf16_fp4 v8, v8, v10
	v_cndmask_b32_e64 v13, v13, v44, s[14:15]
	v_cndmask_b32_e64 v49, v49, v44, s[26:27]
	v_cndmask_b32_e64 v10, v8, v44, s[14:15]
	v_lshrrev_b32_e32 v8, 16, v8
	v_perm_b32 v13, v13, v51, s61
	v_cndmask_b32_e64 v51, v48, v44, s[26:27]
	v_lshrrev_b32_e32 v48, 16, v48
	v_perm_b32 v49, v49, v46, s61
	v_cndmask_b32_e64 v8, v8, v44, s[14:15]
	v_lshrrev_b32_e32 v46, 16, v50
	v_cndmask_b32_e64 v48, v48, v44, s[26:27]
	v_perm_b32 v10, v8, v10, s61
	v_cndmask_b32_e64 v8, v50, v44, s[26:27]
	v_cndmask_b32_e64 v46, v46, v44, s[26:27]
	v_cmp_lt_i32_e64 s[26:27], s30, v39
	v_perm_b32 v46, v46, v8, s61
	v_add_u32_e32 v8, s30, v36
	s_and_b64 s[28:29], s[6:7], s[26:27]
	s_mov_b32 s14, s10
	s_mov_b32 s15, s11
	v_cndmask_b32_e64 v8, v21, v8, s[28:29]
	buffer_load_ubyte v54, v8, s[12:15], 0 offen
	v_add_u32_e32 v8, s30, v37
	s_and_b64 s[14:15], s[24:25], s[26:27]
	s_mov_b32 s50, s10
	v_cndmask_b32_e64 v8, v21, v8, s[14:15]
	buffer_load_ubyte v57, v8, s[48:51], 0 offen
	v_perm_b32 v48, v48, v51, s61
	s_lshl_b32 s14, s64, 6
	s_add_i32 s28, s14, 0x1000
	v_add_u32_e32 v50, s14, v14
	s_add_i32 s29, s14, 0x1080
	v_cmp_eq_u16_sdwa s[14:15], v45, s60 src0_sel:BYTE_3 src1_sel:DWORD
	v_lshlrev_b16_sdwa v8, v42, v45 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:BYTE_3
	v_lshlrev_b16_sdwa v45, v42, v56 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:BYTE_3
	v_max_u16_sdwa v45, v45, v43 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD
	v_cmp_eq_u16_sdwa s[26:27], v56, s60 src0_sel:BYTE_3 src1_sel:DWORD
	v_max_u16_sdwa v8, v8, v43 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD
	v_mfma_f32_16x16x32_bf16 v[0:3], v[46:49], v[10:13], v[0:3]
	v_cvt_scalef32_pk_bf16_fp4 v10, v55, v45 op_sel:[1,0,0]
	v_cvt_scalef32_pk_bf16_fp4 v46, v55, v45 op_sel:[0,1,0]
	v_cvt_scalef32_pk_bf16_fp4 v11, v9, v8
	v_cvt_scalef32_pk_bf16_fp4 v12, v9, v8 op_sel:[1,0,0]
	v_cvt_scalef32_pk_bf16_fp4 v13, v9, v8 op_sel:[0,1,0]
	v_cvt_scalef32_pk_bf16_fp4 v8, v9, v8 op_sel:[1,1,0]
	v_cvt_scalef32_pk_bf16_fp4 v9, v55, v45
	v_cvt_scalef32_pk_bf16_fp4 v45, v55, v45 op_sel:[1,1,0]
	v_cndmask_b32_e64 v48, v10, v44, s[26:27]
	v_lshrrev_b32_e32 v10, 16, v10
	v_cndmask_b32_e64 v49, v46, v44, s[26:27]
	v_lshrrev_b32_e32 v46, 16, v46
	v_cndmask_b32_e64 v47, v9, v44, s[26:27]
	v_lshrrev_b32_e32 v51, 16, v9
	v_cndmask_b32_e64 v52, v45, v44, s[26:27]
	v_lshrrev_b32_e32 v45, 16, v45
	v_cndmask_b32_e64 v9, v10, v44, s[26:27]
	v_cndmask_b32_e64 v10, v46, v44, s[26:27]
	v_perm_b32 v10, v10, v49, s61
	v_lshrrev_b32_e32 v46, 16, v11
	v_cndmask_b32_e64 v53, v11, v44, s[14:15]
	v_cndmask_b32_e64 v11, v45, v44, s[26:27]
	v_cndmask_b32_e64 v49, v8, v44, s[14:15]
	v_lshrrev_b32_e32 v8, 16, v8
	v_cndmask_b32_e64 v51, v51, v44, s[26:27]
	v_perm_b32 v9, v9, v48, s61
	v_perm_b32 v11, v11, v52, s61
	v_cndmask_b32_e64 v52, v8, v44, s[14:15]
	v_perm_b32 v8, v51, v47, s61
	v_cndmask_b32_e64 v48, v12, v44, s[14:15]
	v_lshrrev_b32_e32 v12, 16, v12
	v_cndmask_b32_e64 v45, v13, v44, s[14:15]
	v_lshrrev_b32_e32 v13, 16, v13
	v_cndmask_b32_e64 v46, v46, v44, s[14:15]
	v_cndmask_b32_e64 v12, v12, v44, s[14:15]
	v_cndmask_b32_e64 v13, v13, v44, s[14:15]
	v_perm_b32 v47, v12, v48, s61
	v_perm_b32 v48, v13, v45, s61
	v_perm_b32 v49, v52, v49, s61
	v_perm_b32 v46, v46, v53, s61
	s_cmp_lt_i32 s62, s58
	s_nop 0
	v_mfma_f32_16x16x32_bf16 v[0:3], v[8:11], v[46:49], v[0:3]
	s_waitcnt vmcnt(1)
	ds_write_b8 v50, v54 offset:4096
	s_waitcnt vmcnt(0)
	ds_write_b8 v50, v57 offset:4224
	s_cbranch_scc1 .LBB0_2
	s_branch .LBB0_4
.LBB0_3:
	v_mov_b32_e32 v3, 0
	s_movk_i32 s28, 0x1000
	s_movk_i32 s29, 0x1080
	v_mov_b32_e32 v2, v3
	v_mov_b32_e32 v1, v3
	v_mov_b32_e32 v0, v3
.LBB0_4:
	s_addk_i32 s43, 0x7f
	s_cmpk_lt_i32 s43, 0x80
	s_waitcnt lgkmcnt(0)
	s_cbranch_scc1 .LBB0_6
	v_add_u32_e32 v6, s29, v4
	v_lshlrev_b32_e32 v8, 1, v35
	ds_read_b32 v6, v6
	v_bitop3_b32 v8, v8, v19, v7 bitop3:0xde
	v_xad_u32 v9, v8, 16, s63
	ds_read2_b32 v[12:13], v9 offset1:8
	v_mov_b32_e32 v24, 7
	s_waitcnt lgkmcnt(1)
	v_lshlrev_b16_sdwa v9, v24, v6 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:BYTE_3
	v_mov_b32_e32 v32, 64
	s_movk_i32 s4, 0xff
	v_max_u16_sdwa v14, v9, v32 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD
	v_mov_b32_e32 v40, 0x7fc0
	s_waitcnt lgkmcnt(0)
	v_cvt_scalef32_pk_bf16_fp4 v9, v13, v14 op_sel:[1,1,0]
	v_cmp_eq_u16_sdwa vcc, v6, s4 src0_sel:BYTE_3 src1_sel:DWORD
	s_mov_b32 s6, 0x5040100
	v_add_u32_e32 v8, s63, v8
	v_cndmask_b32_e32 v10, v9, v40, vcc
	v_lshrrev_b32_e32 v9, 16, v9
	v_cndmask_b32_e32 v9, v9, v40, vcc
	v_perm_b32 v11, v9, v10, s6
	v_cvt_scalef32_pk_bf16_fp4 v9, v13, v14 op_sel:[0,1,0]
	v_cndmask_b32_e32 v10, v9, v40, vcc
	v_lshrrev_b32_e32 v9, 16, v9
	v_cndmask_b32_e32 v9, v9, v40, vcc
	ds_read2_b32 v[16:17], v8 offset1:8
	v_perm_b32 v10, v9, v10, s6
	v_cvt_scalef32_pk_bf16_fp4 v9, v13, v14 op_sel:[1,0,0]
	v_cvt_scalef32_pk_bf16_fp4 v13, v13, v14
	v_lshrrev_b32_e32 v14, 16, v13
	v_cndmask_b32_e32 v8, v13, v40, vcc
	v_and_b32_sdwa v13, v6, s4 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:DWORD
	v_cndmask_b32_e32 v41, v14, v40, vcc
	v_lshlrev_b16_e32 v14, 7, v13
	v_cndmask_b32_e32 v15, v9, v40, vcc
	v_lshrrev_b32_e32 v9, 16, v9
	v_max_u16_sdwa v18, v14, v32 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD
	v_cndmask_b32_e32 v9, v9, v40, vcc
	s_waitcnt lgkmcnt(0)
	v_cvt_scalef32_pk_bf16_fp4 v14, v17, v18 op_sel:[1,1,0]
	v_cmp_eq_u16_e32 vcc, s4, v13
	v_perm_b32 v9, v9, v15, s6
	v_add_u32_e32 v4, s28, v4
	v_cndmask_b32_e32 v13, v14, v40, vcc
	v_lshrrev_b32_e32 v14, 16, v14
	v_cndmask_b32_e32 v14, v14, v40, vcc
	v_perm_b32 v15, v14, v13, s6
	v_cvt_scalef32_pk_bf16_fp4 v13, v17, v18 op_sel:[0,1,0]
	v_cndmask_b32_e32 v14, v13, v40, vcc
	v_lshrrev_b32_e32 v13, 16, v13
	v_cndmask_b32_e32 v13, v13, v40, vcc
	v_perm_b32 v14, v13, v14, s6
	v_cvt_scalef32_pk_bf16_fp4 v13, v17, v18 op_sel:[1,0,0]
	v_cvt_scalef32_pk_bf16_fp4 v17, v17, v18
	v_lshrrev_b32_e32 v18, 16, v17
	v_cndmask_b32_e32 v43, v17, v40, vcc
	v_lshrrev_b32_e32 v17, 8, v6
	v_cndmask_b32_e32 v21, v13, v40, vcc
	v_lshrrev_b32_e32 v13, 16, v13
	v_cndmask_b32_e32 v42, v18, v40, vcc
	v_lshlrev_b16_sdwa v18, v24, v17 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:BYTE_0
	v_cndmask_b32_e32 v13, v13, v40, vcc
	v_max_u16_sdwa v18, v18, v32 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD
	v_perm_b32 v13, v13, v21, s6
	v_cvt_scalef32_pk_bf16_fp4 v21, v12, v18 op_sel:[1,1,0]
	v_cmp_eq_u16_sdwa vcc, v17, s4 src0_sel:BYTE_0 src1_sel:DWORD
	ds_read_b32 v4, v4
	v_perm_b32 v8, v41, v8, s6
	v_cndmask_b32_e32 v17, v21, v40, vcc
	v_lshrrev_b32_e32 v21, 16, v21
	v_cndmask_b32_e32 v21, v21, v40, vcc
	v_perm_b32 v23, v21, v17, s6
	v_cvt_scalef32_pk_bf16_fp4 v17, v12, v18 op_sel:[0,1,0]
	v_cndmask_b32_e32 v21, v17, v40, vcc
	v_lshrrev_b32_e32 v17, 16, v17
	v_cndmask_b32_e32 v17, v17, v40, vcc
	v_perm_b32 v22, v17, v21, s6
	v_cvt_scalef32_pk_bf16_fp4 v17, v12, v18 op_sel:[1,0,0]
	v_cndmask_b32_e32 v21, v17, v40, vcc
	v_lshrrev_b32_e32 v17, 16, v17
	v_cndmask_b32_e32 v17, v17, v40, vcc
	v_cvt_scalef32_pk_bf16_fp4 v12, v12, v18
	v_perm_b32 v21, v17, v21, s6
	v_lshrrev_b32_e32 v17, 16, v12
	v_cndmask_b32_e32 v44, v17, v40, vcc
	v_lshlrev_b16_sdwa v17, v24, v6 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:BYTE_0
	v_max_u16_sdwa v17, v17, v32 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD
	v_cndmask_b32_e32 v12, v12, v40, vcc
	v_cvt_scalef32_pk_bf16_fp4 v18, v16, v17 op_sel:[1,1,0]
	v_cmp_eq_u16_sdwa vcc, v6, s4 src0_sel:BYTE_0 src1_sel:DWORD
	s_nop 1
	v_cndmask_b32_e32 v6, v18, v40, vcc
	v_lshrrev_b32_e32 v18, 16, v18
	v_cndmask_b32_e32 v18, v18, v40, vcc
	v_perm_b32 v27, v18, v6, s6
	v_cvt_scalef32_pk_bf16_fp4 v6, v16, v17 op_sel:[0,1,0]
	v_cndmask_b32_e32 v18, v6, v40, vcc
	v_lshrrev_b32_e32 v6, 16, v6
	v_cndmask_b32_e32 v6, v6, v40, vcc
	v_perm_b32 v26, v6, v18, s6
	v_cvt_scalef32_pk_bf16_fp4 v6, v16, v17 op_sel:[1,0,0]
	v_cndmask_b32_e32 v18, v6, v40, vcc
	v_lshrrev_b32_e32 v6, 16, v6
	v_cndmask_b32_e32 v6, v6, v40, vcc
	v_perm_b32 v25, v6, v18, s6
	v_cvt_scalef32_pk_bf16_fp4 v6, v16, v17
	v_add3_u32 v17, s59, v19, v20
	ds_read2_b32 v[28:29], v17 offset0:8 offset1:12
	ds_read2_b32 v[36:37], v17 offset1:4
	s_waitcnt lgkmcnt(2)
	v_lshlrev_b16_sdwa v17, v24, v4 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:BYTE_3
	v_lshrrev_b32_e32 v16, 16, v6
	v_max_u16_sdwa v20, v17, v32 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD
	v_cndmask_b32_e32 v16, v16, v40, vcc
	v_cndmask_b32_e32 v6, v6, v40, vcc
	s_waitcnt lgkmcnt(1)
	v_cvt_scalef32_pk_bf16_fp4 v17, v29, v20 op_sel:[1,1,0]
	v_cmp_eq_u16_sdwa vcc, v4, s4 src0_sel:BYTE_3 src1_sel:DWORD
	v_cvt_scalef32_pk_bf16_fp4 v45, v29, v20
	v_lshrrev_b32_e32 v46, 16, v45
	v_cndmask_b32_e32 v18, v17, v40, vcc
	v_lshrrev_b32_e32 v17, 16, v17
	v_cndmask_b32_e32 v17, v17, v40, vcc
	v_perm_b32 v19, v17, v18, s6
	v_cvt_scalef32_pk_bf16_fp4 v17, v29, v20 op_sel:[0,1,0]
	v_cndmask_b32_e32 v18, v17, v40, vcc
	v_lshrrev_b32_e32 v17, 16, v17
	v_cndmask_b32_e32 v17, v17, v40, vcc
	v_perm_b32 v18, v17, v18, s6
	v_cvt_scalef32_pk_bf16_fp4 v17, v29, v20 op_sel:[1,0,0]
	v_and_b32_sdwa v20, v4, s4 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:DWORD
	v_lshlrev_b16_e32 v29, 7, v20
	v_max_u16_sdwa v33, v29, v32 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD
	v_cmp_eq_u16_e64 s[0:1], s4, v20
	v_cvt_scalef32_pk_bf16_fp4 v29, v28, v33 op_sel:[1,1,0]
	v_cndmask_b32_e32 v30, v17, v40, vcc
	v_cndmask_b32_e64 v20, v29, v40, s[0:1]
	v_lshrrev_b32_e32 v29, 16, v29
	v_cndmask_b32_e64 v29, v29, v40, s[0:1]
	v_perm_b32 v31, v29, v20, s6
	v_cvt_scalef32_pk_bf16_fp4 v20, v28, v33 op_sel:[0,1,0]
	v_lshrrev_b32_e32 v17, 16, v17
	v_cndmask_b32_e64 v29, v20, v40, s[0:1]
	v_lshrrev_b32_e32 v20, 16, v20
	v_cndmask_b32_e32 v17, v17, v40, vcc
	v_cndmask_b32_e64 v20, v20, v40, s[0:1]
	v_perm_b32 v17, v17, v30, s6
	v_perm_b32 v30, v20, v29, s6
	v_cvt_scalef32_pk_bf16_fp4 v20, v28, v33 op_sel:[1,0,0]
	v_cndmask_b32_e64 v29, v20, v40, s[0:1]
	v_lshrrev_b32_e32 v20, 16, v20
	v_cndmask_b32_e64 v20, v20, v40, s[0:1]
	v_cvt_scalef32_pk_bf16_fp4 v28, v28, v33
	v_perm_b32 v29, v20, v29, s6
	v_lshrrev_b32_e32 v20, 16, v28
	v_cndmask_b32_e64 v47, v20, v40, s[0:1]
	v_lshrrev_b32_e32 v20, 8, v4
	v_lshlrev_b16_sdwa v33, v24, v20 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:BYTE_0
	v_max_u16_sdwa v38, v33, v32 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD
	v_cmp_eq_u16_sdwa s[2:3], v20, s4 src0_sel:BYTE_0 src1_sel:DWORD
	s_waitcnt lgkmcnt(0)
	v_cvt_scalef32_pk_bf16_fp4 v33, v37, v38 op_sel:[1,1,0]
	v_cvt_scalef32_pk_bf16_fp4 v48, v37, v38
	v_cndmask_b32_e64 v20, v33, v40, s[2:3]
	v_lshrrev_b32_e32 v33, 16, v33
	v_cndmask_b32_e64 v33, v33, v40, s[2:3]
	v_perm_b32 v35, v33, v20, s6
	v_cvt_scalef32_pk_bf16_fp4 v20, v37, v38 op_sel:[0,1,0]
	v_cndmask_b32_e64 v33, v20, v40, s[2:3]
	v_lshrrev_b32_e32 v20, 16, v20
	v_cndmask_b32_e64 v20, v20, v40, s[2:3]
	v_perm_b32 v34, v20, v33, s6
	v_cvt_scalef32_pk_bf16_fp4 v20, v37, v38 op_sel:[1,0,0]
	v_cndmask_b32_e64 v33, v20, v40, s[2:3]
	v_lshrrev_b32_e32 v20, 16, v20
	v_cndmask_b32_e64 v20, v20, v40, s[2:3]
	v_perm_b32 v33, v20, v33, s6
	v_lshrrev_b32_e32 v20, 16, v48
	v_cndmask_b32_e64 v49, v20, v40, s[2:3]
	v_lshlrev_b16_sdwa v20, v24, v4 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:BYTE_0
	v_max_u16_sdwa v20, v20, v32 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD
	v_cmp_eq_u16_sdwa s[4:5], v4, s4 src0_sel:BYTE_0 src1_sel:DWORD
	v_cvt_scalef32_pk_bf16_fp4 v24, v36, v20 op_sel:[1,1,0]
	s_nop 0
	v_cndmask_b32_e64 v4, v24, v40, s[4:5]
	v_lshrrev_b32_e32 v24, 16, v24
	v_cndmask_b32_e64 v24, v24, v40, s[4:5]
	v_perm_b32 v39, v24, v4, s6
	v_cvt_scalef32_pk_bf16_fp4 v4, v36, v20 op_sel:[0,1,0]
	v_cndmask_b32_e64 v24, v4, v40, s[4:5]
	v_lshrrev_b32_e32 v4, 16, v4
	v_cndmask_b32_e64 v4, v4, v40, s[4:5]
	v_perm_b32 v38, v4, v24, s6
	v_cvt_scalef32_pk_bf16_fp4 v4, v36, v20 op_sel:[1,0,0]
	v_cndmask_b32_e64 v24, v4, v40, s[4:5]
	v_lshrrev_b32_e32 v4, 16, v4
	v_cndmask_b32_e64 v4, v4, v40, s[4:5]
	v_perm_b32 v37, v4, v24, s6
	v_perm_b32 v24, v16, v6, s6
	v_cvt_scalef32_pk_bf16_fp4 v4, v36, v20
	v_lshrrev_b32_e32 v20, 16, v4
	v_cndmask_b32_e64 v6, v20, v40, s[4:5]
	v_cndmask_b32_e64 v4, v4, v40, s[4:5]
	v_perm_b32 v36, v6, v4, s6
	v_perm_b32 v20, v44, v12, s6
	v_cndmask_b32_e64 v4, v48, v40, s[2:3]
	v_mfma_f32_16x16x32_bf16 v[0:3], v[24:27], v[36:39], v[0:3]
	v_perm_b32 v32, v49, v4, s6
	v_perm_b32 v12, v42, v43, s6
	v_cndmask_b32_e64 v4, v28, v40, s[0:1]
	v_mfma_f32_16x16x32_bf16 v[0:3], v[20:23], v[32:35], v[0:3]
	v_perm_b32 v28, v47, v4, s6
	v_cndmask_b32_e32 v4, v46, v40, vcc
	v_cndmask_b32_e32 v6, v45, v40, vcc
	v_mfma_f32_16x16x32_bf16 v[0:3], v[12:15], v[28:31], v[0:3]
	v_perm_b32 v16, v4, v6, s6
	s_nop 1
	v_mfma_f32_16x16x32_bf16 v[0:3], v[8:11], v[16:19], v[0:3]
.LBB0_6:
	v_or_b32_e32 v4, 3, v7
	s_mul_i32 s8, s47, s33
	v_or_b32_e32 v6, s42, v4
	v_or_b32_e32 v12, s42, v7
	v_or_b32_e32 v13, s33, v5
	s_add_i32 s8, s8, s42
	v_or_b32_e32 v8, 2, v7
	v_or_b32_e32 v10, 1, v7
	v_cmp_gt_i32_e32 vcc, s46, v13
	v_cmp_gt_i32_e64 s[0:1], s47, v12
	v_cmp_gt_i32_e64 s[6:7], s47, v6
	v_mul_lo_u32 v5, s47, v5
	v_or_b32_e32 v6, s8, v7
	v_or_b32_e32 v9, s42, v8
	v_or_b32_e32 v11, s42, v10
	v_add_u32_e32 v7, s8, v5
	v_add_lshl_u32 v5, v6, v5, 2
	v_bfrev_b32_e32 v6, 1
	s_and_b64 s[0:1], vcc, s[0:1]
	v_cmp_gt_i32_e64 s[2:3], s47, v11
	v_cmp_gt_i32_e64 s[4:5], s47, v9
	s_and_b32 s45, s45, 0xffff
	s_mov_b32 s47, 0x27000
	s_mov_b32 s46, 0x7ffffffe
	v_cndmask_b32_e64 v5, v6, v5, s[0:1]
	buffer_store_dword v0, v5, s[44:47], 0 offen
	v_add_lshl_u32 v0, v7, v10, 2
	s_and_b64 s[0:1], vcc, s[2:3]
	v_cndmask_b32_e64 v0, v6, v0, s[0:1]
	buffer_store_dword v1, v0, s[44:47], 0 offen
	v_add_lshl_u32 v0, v7, v8, 2
	s_and_b64 s[0:1], vcc, s[4:5]
	v_cndmask_b32_e64 v0, v6, v0, s[0:1]
	buffer_store_dword v2, v0, s[44:47], 0 offen
	v_add_lshl_u32 v0, v7, v4, 2
	s_and_b64 vcc, vcc, s[6:7]
	v_cndmask_b32_e32 v0, v6, v0, vcc
	buffer_store_dword v3, v0, s[44:47], 0 offen
	s_endpgm
.Lfunc_end0:
	.size	mx_gemm, .Lfunc_end0-mx_gemm
	.section	.rodata,"a",@progbits
	.p2align	6, 0x0
	.amdhsa_kernel mx_gemm
		.amdhsa_group_segment_fixed_size 4352
		.amdhsa_private_segment_fixed_size 0
		.amdhsa_kernarg_size 328
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
		.amdhsa_next_free_vgpr 58
		.amdhsa_next_free_sgpr 66
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
      - .address_space:  global
        .offset:         24
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         32
        .size:           8
        .value_kind:     global_buffer
      - .offset:         40
        .size:           4
        .value_kind:     by_value
      - .offset:         44
        .size:           4
        .value_kind:     by_value
      - .offset:         48
        .size:           4
        .value_kind:     by_value
      - .address_space:  global
        .offset:         56
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         64
        .size:           8
        .value_kind:     global_buffer
      - .offset:         72
        .size:           4
        .value_kind:     hidden_block_count_x
      - .offset:         76
        .size:           4
        .value_kind:     hidden_block_count_y
      - .offset:         80
        .size:           4
        .value_kind:     hidden_block_count_z
      - .offset:         84
        .size:           2
        .value_kind:     hidden_group_size_x
      - .offset:         86
        .size:           2
        .value_kind:     hidden_group_size_y
      - .offset:         88
        .size:           2
        .value_kind:     hidden_group_size_z
      - .offset:         90
        .size:           2
        .value_kind:     hidden_remainder_x
      - .offset:         92
        .size:           2
        .value_kind:     hidden_remainder_y
      - .offset:         94
        .size:           2
        .value_kind:     hidden_remainder_z
      - .offset:         112
        .size:           8
        .value_kind:     hidden_global_offset_x
      - .offset:         120
        .size:           8
        .value_kind:     hidden_global_offset_y
      - .offset:         128
        .size:           8
        .value_kind:     hidden_global_offset_z
      - .offset:         136
        .size:           2
        .value_kind:     hidden_grid_dims
      - .offset:         152
        .size:           8
        .value_kind:     hidden_hostcall_buffer
      - .offset:         160
        .size:           8
        .value_kind:     hidden_multigrid_sync_arg
      - .offset:         168
        .size:           8
        .value_kind:     hidden_heap_v1
      - .offset:         176
        .size:           8
        .value_kind:     hidden_default_queue
      - .offset:         184
        .size:           8
        .value_kind:     hidden_completion_action
      - .offset:         192
        .size:           4
        .value_kind:     hidden_dynamic_lds_size
      - .offset:         272
        .size:           8
        .value_kind:     hidden_queue_ptr
    .group_segment_fixed_size: 4352
    .kernarg_segment_align: 8
    .kernarg_segment_size: 328
    .max_flat_workgroup_size: 64
    .name:           mx_gemm
    .private_segment_fixed_size: 0
    .sgpr_count:     72
    .sgpr_spill_count: 0
    .symbol:         mx_gemm.kd
    .uniform_work_group_size: 1
    .uses_dynamic_stack: false
    .vgpr_count:     58
    .vgpr_spill_count: 0
    .wavefront_size: 64
amdhsa.target:   amdgpu9.50-amd-amdhsa-unknown-gfx950
amdhsa.version:
  - 1
  - 2
...
	.end_amdgpu_metadata
